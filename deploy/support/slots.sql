-- slots: list the replication slots and the WAL that the server keeps for each, the most first.
-- params:  none
-- returns: a row for each slot; no row if there is none; kept_wal is null for a slot that was never used
-- index:   none (statistics of the server)
-- locks:   none
-- called by: psql, as any login
-- why:     WAL that is kept for a slot without a reader fills the disk. SELECT pg_drop_replication_slot('NAME'),
--          as a superuser, drops a slot that is not active and that no standby will come back to.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SELECT slots.slot_name, slots.slot_type, slots.active, slots.wal_status, pg_catalog.pg_size_pretty(kept.bytes) AS kept_wal
FROM pg_catalog.pg_replication_slots AS slots
CROSS JOIN LATERAL (
    SELECT pg_catalog.pg_wal_lsn_diff(
        CASE
            WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_lsn()
        END,
        slots.restart_lsn
    ) AS bytes
) AS kept
ORDER BY kept.bytes DESC NULLS LAST, slots.slot_name;
COMMIT;
