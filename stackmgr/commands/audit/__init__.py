"""`stackmgr audit`: the command, the rules that stored rows must keep, and the report."""

from stackmgr.commands.audit.command import add_to

__all__ = ["add_to"]
