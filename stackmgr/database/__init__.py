"""Access to PostgreSQL: sessions and their pool, statements, deadlines and retries."""
