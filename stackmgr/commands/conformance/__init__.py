"""`stackmgr conformance`: the command, its checks, and the client that they use."""

from stackmgr.commands.conformance.command import COMMAND

__all__ = ["COMMAND"]
