"""The way to PostgreSQL."""
