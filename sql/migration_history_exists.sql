-- migration_history_exists: return whether any migration was applied to this database.
-- params:  none
-- returns: one row (history_exists, is_own), is_own false if the table is another service's
-- index:   none (catalog)
-- locks:   none
-- called by: operate.migrations.has_history
-- why:     a login that does not inherit the rights of its roles may not use the schema, so that to_regclass
--          would fail; every login may read the catalog.
SELECT count(pg_class.oid) > 0 AS history_exists, count(attname) = 3 AS is_own
FROM pg_catalog.pg_class
LEFT JOIN pg_catalog.pg_attribute
    ON attrelid = pg_class.oid
    AND attname IN ('version', 'slug', 'checksum')
WHERE relnamespace = to_regnamespace('stackmgr')
    AND relname = 'schema_migrations';
