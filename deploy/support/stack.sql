-- stack: show one stack, its history and what each update changed, the newest first.
-- params:  stack; optional: manager (external id or manager id), revisions (how many, default 50)
-- returns: the stack, a row for each revision, and a row for each token whose weight an update changed
-- index:   stacks_pkey, once for each manager where none is given; stack_revisions_pkey, api_keys_key_id_key
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     the key of stacks begins with manager_id; an index on stack_id alone would cost every create.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?stack} \else
DO $$ BEGIN RAISE EXCEPTION 'which stack? psql -v stack=UUID'; END $$;
\endif
\if :{?revisions} \else \set revisions 50 \endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;
SET LOCAL TimeZone = 'UTC';

SELECT (
    SELECT managers.manager_id
    FROM stackmgr.managers AS managers
    CROSS JOIN LATERAL (
        SELECT FROM stackmgr.stacks AS stacks
        WHERE stacks.manager_id = managers.manager_id AND stacks.stack_id = :'stack'::uuid
        LIMIT 1
    ) AS stack
\if :{?manager}
    WHERE managers.external_id = :'manager'::uuid OR managers.manager_id = :'manager'::uuid
\endif
    LIMIT 1
) AS owner \gset
\if :{?owner} \else
DO $$ BEGIN RAISE EXCEPTION 'no such stack'; END $$;
\endif

\x on
SELECT
    external_id, manager_id, stack_id, name, preset, allocation, revision_number, revision_id, revised_at, created_at
FROM stackmgr.current_stack
WHERE manager_id = :'owner'::uuid AND stack_id = :'stack'::uuid;

\x off
SELECT
    revisions.revision_number AS number, revisions.created_at, revisions.key_id, keys.label AS key_label,
    revisions.request_id, revisions.name, revisions.preset
FROM stackmgr.stack_revisions AS revisions
LEFT JOIN LATERAL (
    SELECT label FROM stackmgr.api_keys AS api_keys
    WHERE api_keys.key_id = CASE
        WHEN revisions.key_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN revisions.key_id::uuid
    END
) AS keys ON true
WHERE revisions.manager_id = :'owner'::uuid AND revisions.stack_id = :'stack'::uuid
ORDER BY revisions.revision_number DESC
LIMIT :'revisions'::integer;

SELECT
    revision_number AS number, name_before, name_after, preset_before, preset_after,
    token_address, weight_bps_before AS bps_before, weight_bps_after AS bps_after
FROM stackmgr.revision_diff
WHERE manager_id = :'owner'::uuid AND stack_id = :'stack'::uuid
    AND revision_number > (
        SELECT revision_number - :'revisions'::integer FROM stackmgr.stacks
        WHERE manager_id = :'owner'::uuid AND stack_id = :'stack'::uuid
    )
ORDER BY revision_number DESC, token_address;
COMMIT;
