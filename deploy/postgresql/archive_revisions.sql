-- Move old revisions of stacks into a file of COPY's text format: for a DBA, as a login that may assume stackmgr_owner,
-- and not through a pooler, whose sessions would keep the role.
--
--     psql -X -d stackmgr -v before=2026-01-01 -v file=revisions-2025.tsv -f archive_revisions.sql
--
-- Revisions older than the time leave the table, but for the first of each stack, from which its receipt is
-- audited, and the current one. The file is written as FILE.part, synced, and renamed. Then it is read back, and each
-- row of the table that equals one of the file is deleted, in one transaction. If it ends before that, for whatever
-- reason, run it again with the same file: one that exists is not written again. The service goes on; it reads no
-- revision. Take a year at first, then month by month, each into a file of its own.
--
-- The revisions of managers that `stackmgr managers hold` holds stay in the table, also if the hold is later than the
-- file. A hold waits for the deletion, for 10 s, and then fails.

\set ON_ERROR_STOP on

\if :{?before} \else \unset file \endif
\if :{?file} \else
DO $$ BEGIN RAISE EXCEPTION 'before when, into which file? psql -v before=TIME -v file=FILE'; END $$;
\endif

SET ROLE stackmgr_owner;
SET search_path = pg_catalog;
SET statement_timeout = 0;
-- The same text for every reader of the file.
SET client_encoding = 'UTF8';
SET DateStyle = 'ISO';
SET TimeZone = 'UTC';

\set part :file .part
\set is_written `test -e :'file' && echo on || echo off`
\if :is_written
\echo :file 'exists and is not written again'
\else
COPY (
    SELECT revisions.*
    FROM stackmgr.stack_revisions AS revisions
    JOIN stackmgr.stacks AS stacks
        ON stacks.manager_id = revisions.manager_id
        AND stacks.stack_id = revisions.stack_id
    WHERE revisions.created_at < :'before'::timestamptz
        AND revisions.revision_number > 1
        AND revisions.revision_number < stacks.revision_number
        AND revisions.manager_id NOT IN (SELECT manager_id FROM stackmgr.manager_holds WHERE released_at IS NULL)
    ORDER BY revisions.manager_id, revisions.stack_id, revisions.revision_number
) TO STDOUT (HEADER) \g :part
\set is_written `sync -- :'part' && mv -- :'part' :'file' && echo on || echo off`
\endif
\set is_durable off
\if :is_written
\set is_durable `sync -- :'file' "$(dirname -- :'file')" && echo on || echo off`
\endif
\if :is_durable
\else
DO $$ BEGIN RAISE EXCEPTION 'the file is not on its disk: nothing is deleted'; END $$;
\endif

BEGIN;
LOCK TABLE stackmgr.manager_holds IN SHARE MODE;
SELECT format(
    'CREATE UNLOGGED TABLE stackmgr.archived (%s)', string_agg(format('%I text', attname), ', ' ORDER BY attnum)
)
FROM pg_attribute
WHERE attrelid = 'stackmgr.stack_revisions'::regclass AND attnum > 0 AND NOT attisdropped
\gexec
\set read_back '\\copy stackmgr.archived FROM ' :'file' ' (HEADER MATCH)'
:read_back
ANALYZE stackmgr.archived;

DO $$
DECLARE
    held    uuid[] := ARRAY(SELECT manager_id FROM stackmgr.manager_holds WHERE released_at IS NULL);
    deleted bigint;
BEGIN
    DELETE FROM stackmgr.stack_revisions AS revisions
    USING stackmgr.archived AS archived, stackmgr.stacks AS stacks
    WHERE revisions.manager_id = archived.manager_id::uuid
        AND revisions.stack_id = archived.stack_id::uuid
        AND revisions.revision_number = archived.revision_number::integer
        AND revisions::text = archived::text
        AND stacks.manager_id = revisions.manager_id
        AND stacks.stack_id = revisions.stack_id
        AND revisions.revision_number > 1
        AND revisions.revision_number < stacks.revision_number
        AND revisions.manager_id <> ALL (held);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    IF EXISTS (
        SELECT
        FROM stackmgr.archived AS archived
        JOIN stackmgr.stack_revisions AS revisions
            ON revisions.manager_id = archived.manager_id::uuid
            AND revisions.stack_id = archived.stack_id::uuid
            AND revisions.revision_number = archived.revision_number::integer
        WHERE revisions.manager_id <> ALL (held)
    ) THEN
        RAISE EXCEPTION 'the file differs from the table: nothing is deleted';
    END IF;
    RAISE NOTICE 'revisions in the file: %, deleted now: %', (SELECT count(*) FROM stackmgr.archived), deleted;
    IF cardinality(held) > 0 THEN
        RAISE NOTICE 'held managers, whose revisions stay in the table: %', array_to_string(held, ', ');
    END IF;
END
$$;

DROP TABLE stackmgr.archived;
COMMIT;
