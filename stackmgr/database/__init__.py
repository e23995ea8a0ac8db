"""Access to PostgreSQL: sessions and their pool, statements, migrations, and the check at start."""
