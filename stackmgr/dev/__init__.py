"""For developers: the server of `stackmgr dev`."""
