"""Operation of the service: commands, migrations, the check at start.  No worker imports it.

A module of a command has `add_to`, by which `stackmgr.cli` adds it.
"""
