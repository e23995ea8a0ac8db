-- manager_erasure_dead_receipts: return how many deleted receipts the last vacuum had to keep.
-- params:  none
-- returns: one row (receipts)
-- index:   none (statistics)
-- locks:   none
-- called by: operate.erasure.erase
-- why:     a transaction that began before their deletion may still read them.
SELECT coalesce(sum(n_dead_tup), 0)::bigint AS receipts
FROM pg_catalog.pg_stat_all_tables
WHERE relid = to_regclass('stackmgr.creation_receipts');
