-- Move old revisions of stacks into a CSV file: for a DBA, as a login that may assume stackmgr_owner.
--
--     psql -X -d stackmgr -v before=2026-01-01 -v file=revisions-2025.csv -f archive_revisions.sql
--
-- Revisions older than the time leave the table, but for the first of each stack, from which its receipt is
-- audited, and the current one. File and deletion are of one snapshot and one transaction: if either fails,
-- nothing has changed. The service goes on; it reads no revision. Take a year at first, then month by month.

\set ON_ERROR_STOP on

BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL ROLE stackmgr_owner;
SET LOCAL search_path = pg_catalog;
-- The same text for every reader of the file.
SET LOCAL DateStyle = 'ISO';
SET LOCAL TimeZone = 'UTC';

COPY (
    SELECT revisions.*
    FROM stackmgr.stack_revisions AS revisions
    JOIN stackmgr.stacks AS stacks
        ON stacks.manager_id = revisions.manager_id
        AND stacks.stack_id = revisions.stack_id
    WHERE revisions.created_at < :'before'::timestamptz
        AND revisions.revision_number > 1
        AND revisions.revision_number < stacks.revision_number
    ORDER BY revisions.manager_id, revisions.stack_id, revisions.revision_number
) TO STDOUT (FORMAT csv, HEADER) \g :file

DELETE FROM stackmgr.stack_revisions AS revisions
USING stackmgr.stacks AS stacks
WHERE stacks.manager_id = revisions.manager_id
    AND stacks.stack_id = revisions.stack_id
    AND revisions.created_at < :'before'::timestamptz
    AND revisions.revision_number > 1
    AND revisions.revision_number < stacks.revision_number;

COMMIT;
