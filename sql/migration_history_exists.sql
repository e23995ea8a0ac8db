-- migration_history_exists: return whether any migration was applied to this database.
-- params:  none
-- returns: one row (history_exists)
-- index:   none (catalog)
-- locks:   none
-- called by: operate.migrations.has_history
-- why:     a login that does not inherit the rights of its roles may not use the schema, so that to_regclass
--          would fail; every login may read the catalog.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class
    WHERE relnamespace = to_regnamespace('stackmgr')
        AND relname = 'schema_migrations'
) AS history_exists;
