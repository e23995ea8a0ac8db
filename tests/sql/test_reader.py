"""The read-only role, its views, and the comments that explain the schema in psql."""

UNCOMMENTED = b"""
SELECT 'schema' FROM pg_namespace WHERE nspname = 'stackmgr' AND obj_description(oid, 'pg_namespace') IS NULL
UNION ALL
SELECT relname::text FROM pg_class
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind IN ('r', 'v')
    AND obj_description(oid, 'pg_class') IS NULL
UNION ALL
SELECT relname || '.' || attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'stackmgr'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped
    AND col_description(attrelid, attnum) IS NULL
UNION ALL
SELECT proname::text FROM pg_proc
WHERE pronamespace = 'stackmgr'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
UNION ALL
SELECT typname::text FROM pg_type
WHERE typnamespace = 'stackmgr'::regnamespace AND typtype = 'd' AND obj_description(oid, 'pg_type') IS NULL
"""


def test_every_object_and_every_column_has_a_comment(admin):
    assert admin.execute(UNCOMMENTED).fetchall() == []
