"""`stackmgr dev`."""
