-- migration_list: list the applied migrations, each with the checksum of its file at that time.
-- params:  none
-- returns: many (version, checksum)
-- index:   none (a row for each migration)
-- locks:   none
-- called by: operate.migrations.applied_versions
SELECT version, checksum
FROM stackmgr.schema_migrations
ORDER BY version;
