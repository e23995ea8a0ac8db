"""`stackmgr audit`: the command, the rules that stored rows must keep, and the report."""

from stackmgr.operate.audit.command import COMMAND

__all__ = ["COMMAND"]
