"""Operation of the service: commands, migrations, the check at start.  No worker imports it."""
