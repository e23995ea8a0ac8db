"""The operator's commands, one module or package each; `stackmgr.cli` combines them.

Each has a `COMMAND`, which declares its name, help, arguments and function; `command` has the form of such a
declaration.  `arguments` and `output` hold what the commands share.
"""
