-- migration_list: what was applied, with the checksum of the file as it was then.
-- params:  none
-- returns: many (version, checksum)
-- index:   none (a row for each migration)
-- locks:   none
-- called by: database.migrations.applied_versions
SELECT version, checksum
FROM stackmgr.schema_migrations
ORDER BY version;
