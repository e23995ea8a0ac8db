"""The operator's commands, one module or package each; `stackmgr.cli` combines them.

Each has `add_to`, which adds its commands to the parser.  `common`, `arguments` and `output` hold what
they share.
"""
