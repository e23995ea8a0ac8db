"""`stackmgr conformance`: the command, its checks, and the client that they use."""

from stackmgr.commands.conformance.command import add_to

__all__ = ["add_to"]
