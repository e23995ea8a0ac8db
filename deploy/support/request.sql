-- request: show what a request id changed: the revisions that requests with it made, with the differences.
-- params:  request (X-Request-Id); optional: since, until (times of the request), manager (external id or manager id)
-- returns: a row for each revision and each token whose weight it changed; no row if the requests wrote nothing:
--          they read, repeated a create or were rejected, and only the request log has them
-- index:   stack_revisions_created_at with since or until, stack_revisions_pkey with manager; otherwise every
--          revision is read, 1.6 s a million: give both times, as the log has them
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     an index on request_id would cost every write.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?request} \else
DO $$ BEGIN RAISE EXCEPTION 'which request? psql -v request=ID'; END $$;
\endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;
SET LOCAL TimeZone = 'UTC';

\if :{?manager}
SELECT (
    SELECT manager_id FROM stackmgr.managers
    WHERE external_id = :'manager'::uuid OR manager_id = :'manager'::uuid
) AS owner \gset
\if :{?owner} \else
DO $$ BEGIN RAISE EXCEPTION 'no such manager'; END $$;
\endif
\endif

\x on
WITH found AS MATERIALIZED (
    SELECT manager_id, stack_id, revision_number, revision_id, created_at, key_id
    FROM stackmgr.stack_revisions
    WHERE request_id = left(:'request', 255)
\if :{?since}
        AND created_at >= :'since'::timestamptz
\endif
\if :{?until}
        AND created_at <= :'until'::timestamptz
\endif
\if :{?manager}
        AND manager_id = :'owner'::uuid
\endif
)
SELECT
    managers.external_id, found.*, diff.name_before, diff.name_after, diff.preset_before, diff.preset_after,
    diff.token_address, diff.weight_bps_before, diff.weight_bps_after
FROM found
JOIN stackmgr.managers AS managers ON managers.manager_id = found.manager_id
LEFT JOIN stackmgr.revision_diff AS diff
    ON diff.manager_id = found.manager_id AND diff.stack_id = found.stack_id
    AND diff.revision_number = found.revision_number
ORDER BY found.created_at DESC, found.revision_id, diff.token_address;
COMMIT;
