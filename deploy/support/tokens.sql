-- tokens: show who holds the tokens that a whitelist does not list, before that whitelist is used.
-- params:  whitelist (a file, as STACKMGR_TOKENS names one); optional: rows (stacks at most, default 1000)
-- returns: a row for each such token (token_address, stacks, managers, weight_bps), one for each stack that holds it
--          (external_id, stack_id, token_address, weight_bps, name), and how many creations' retries would return 400
-- index:   none: every stack is read, and every revision
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     with the whitelist in force it finds what an audit must: tokens that are held and not listed.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?whitelist} \else
DO $$ BEGIN RAISE EXCEPTION 'which whitelist? psql -v whitelist=FILE'; END $$;
\endif
\if :{?rows} \else \set rows 1000 \endif
\set document `cat -- :'whitelist' 2>/dev/null || :`
SELECT :'document' = '' AS is_missing \gset
\if :is_missing
DO $$ BEGIN RAISE EXCEPTION 'the whitelist cannot be read: name a file'; END $$;
\endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;

SELECT
    array_agg(lower(token ->> 'address')) AS listed,
    count(*) = 30 AND count(token ->> 'address') = 30 AS is_whitelist
FROM json_array_elements(:'document'::json -> 'tokens') AS tokens (token) \gset
\if :is_whitelist \else
DO $$ BEGIN RAISE EXCEPTION 'the file is not a whitelist of 30 tokens'; END $$;
\endif

SELECT
    item.token_address,
    count(*) AS stacks,
    count(DISTINCT stacks.manager_id) AS managers,
    sum(item.weight_bps) AS weight_bps
FROM stackmgr.stacks AS stacks
CROSS JOIN LATERAL json_to_recordset(stacks.allocation) AS item (token_address text, weight_bps integer)
WHERE item.token_address <> ALL (:'listed'::text[])
GROUP BY item.token_address
ORDER BY item.token_address;

SELECT managers.external_id, stacks.stack_id, item.token_address, item.weight_bps, stacks.name
FROM stackmgr.stacks AS stacks
JOIN stackmgr.managers AS managers ON managers.manager_id = stacks.manager_id
CROSS JOIN LATERAL json_to_recordset(stacks.allocation) AS item (token_address text, weight_bps integer)
WHERE item.token_address <> ALL (:'listed'::text[])
ORDER BY managers.external_id, stacks.stack_id, item.token_address
LIMIT :'rows'::integer;

SELECT count(*) AS creations
FROM stackmgr.stack_revisions AS revisions
WHERE revisions.revision_number = 1
    AND EXISTS (
        SELECT FROM json_to_recordset(revisions.allocation) AS item (token_address text)
        WHERE item.token_address <> ALL (:'listed'::text[])
    );
COMMIT;
