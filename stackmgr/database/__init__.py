"""Access to PostgreSQL."""
