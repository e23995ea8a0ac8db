-- migration_record: record an applied migration, in the transaction that applied it.
-- params:  version integer, slug text, checksum bytea
-- returns: one row (version)
-- index:   none
-- locks:   none
-- called by: operate.migrations.apply
INSERT INTO stackmgr.schema_migrations (version, slug, checksum)
VALUES (%(version)s::integer, %(slug)s::text, %(checksum)s::bytea)
RETURNING version;
