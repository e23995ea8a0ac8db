-- find: list stacks by manager, name, token, API key or revision, the newest first; several conditions all hold.
-- params:  one or more of manager (external id or manager id), name (a part, in any case), token (address),
--          key (id of the API key of a revision), revision (id, or an ETag); rows (at most, default 100)
-- returns: up to rows rows (external_id, stack_id, created_at, revision_number, name)
-- index:   stacks_page with manager, and stack_revisions_pkey for key and revision; without manager every stack is
--          read, for key and revision every revision, 1.6 s a million: "stackmgr keys list" has the manager of a key
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     an index on any other column would cost every write. The text of an address cannot be a part of
--          another text in an allocation, and a search for it costs a fifth of parsing the JSON.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?manager} \elif :{?name} \elif :{?token} \elif :{?key} \elif :{?revision} \else
DO $$ BEGIN RAISE EXCEPTION 'which stacks? psql -v manager=, name=, token=, key= or revision='; END $$;
\endif
\if :{?rows} \else \set rows 100 \endif

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

SELECT managers.external_id, stacks.stack_id, stacks.created_at, stacks.revision_number, stacks.name
FROM stackmgr.stacks AS stacks
JOIN stackmgr.managers AS managers ON managers.manager_id = stacks.manager_id
WHERE true
\if :{?manager}
    AND stacks.manager_id = :'owner'::uuid
\endif
\if :{?name}
    AND strpos(lower(stacks.name), lower(:'name')) > 0
\endif
\if :{?token}
    AND strpos(stacks.allocation::text, lower(:'token')) > 0
\endif
\if :{?key}
    AND (stacks.manager_id, stacks.stack_id) IN (
        SELECT manager_id, stack_id FROM stackmgr.stack_revisions WHERE key_id = :'key'
    )
\endif
\if :{?revision}
    AND (stacks.manager_id, stacks.stack_id) IN (
        SELECT manager_id, stack_id FROM stackmgr.stack_revisions WHERE revision_id = trim(:'revision', '"')::uuid
    )
\endif
ORDER BY stacks.created_at DESC, stacks.stack_id DESC
LIMIT :'rows'::integer;
COMMIT;
