"""The operator's commands, one module each; `stackmgr.cli` puts them together.

Each module has `add_to`, which adds its commands to the parser.  `common`, `arguments` and `output` hold what
they share.
"""
