-- audit_estimate: return the planner's estimate of the number of stacks.
-- params:  none
-- returns: one row (stacks); -1 before the first ANALYZE, no row without the schema
-- index:   none (catalog)
-- locks:   none
-- called by: operate.audit.command._estimate
SELECT reltuples::bigint AS stacks
FROM pg_catalog.pg_class
WHERE oid = to_regclass('stackmgr.stacks');
