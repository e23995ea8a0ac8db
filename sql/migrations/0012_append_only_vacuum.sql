-- 0012_append_only_vacuum: freeze the rows of the append-only tables soon after they are inserted.
--
-- By default autovacuum visits such a table each time it has grown by 20 %, freezes no row younger than 50 million
-- transactions, and at an age of 200 million reads and writes all of it again. Now it visits the pages of each
-- million new rows once, and freezes them. Measured with 200,000 revisions on 7,693 pages, vacuumed every 10,000
-- rows: the visits read 7,711 pages either way and wrote 0.0 MB of WAL in place of 0.0 (PostgreSQL 18), 3.1 in place
-- of 0.4 (15); the vacuum against wraparound then read 1 page in place of 7,693, and wrote no WAL in place of 61 MB
-- (18) and 56 MB (15).
--
-- The lock lets reads and writes pass; autovacuum of these tables waits.

SET LOCAL ROLE stackmgr_owner;

ALTER TABLE stackmgr.stack_revisions SET (
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_freeze_min_age = 0
);
ALTER TABLE stackmgr.creation_receipts SET (
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_freeze_min_age = 0
);
