"""For developers: the server of `stackmgr dev`, and why the service rejects a body."""
