-- readiness: return whether the server accepts writes, and its schema version.
-- params:  none
-- returns: one row (takes_writes, schema_version)
-- index:   none (a row for each migration)
-- locks:   none
-- called by: http.health.Ready.on_get
-- why:     after a failover a pooled connection may still lead to the old primary, where reads succeed and
--          every write fails.
SELECT
    NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean AS takes_writes,
    (SELECT max(version) FROM stackmgr.schema_migrations) AS schema_version;
