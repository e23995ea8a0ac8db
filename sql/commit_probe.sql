-- commit_probe: write an empty message to the WAL, to see whether a commit is confirmed.
-- params:  none
-- returns: one row (lsn)
-- index:   none
-- locks:   none
-- called by: operate.preflight.examine
-- why:     its commit waits for the disk and for the synchronous standbys, as that of a request does.
SELECT pg_logical_emit_message(true, 'stackmgr'::text, ''::text) AS lsn;
