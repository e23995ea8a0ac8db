"""`stackmgr dev` and the PostgreSQL that it runs."""
