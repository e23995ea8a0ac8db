-- audit: list the rows that break a rule: revisions, current rows and receipts against each other, and what types and
--        foreign keys hold unless a table was restored without them.
-- params:  optional: first, last (manager ids: audit.sh audits a large database so, in parts), archived (any text:
--          revisions between the first of a stack and later ones may be missing)
-- returns: a row for each finding (kind, manager_id, stack_id, finding); psql exits with 3 after findings, and with 2
--          after an error
-- index:   none: every row of the managers is read; of a part by the primary keys
-- locks:   none, but one snapshot for as long as it runs: vacuum keeps what was deleted since
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     tokens.sql with the whitelist in force finds tokens that are held and not listed; pg_amcheck reads what
--          SQL cannot. Times may differ by a minute: an update that waited for another has the earlier time.
\set ON_ERROR_STOP off \set QUIET on \set VERBOSITY terse
\if :{?first} \else \set first 00000000-0000-0000-0000-000000000000 \endif
\if :{?last} \else \set last ffffffff-ffff-ffff-ffff-ffffffffffff \endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;
SET LOCAL jit = off;
SET LOCAL statement_timeout = 0;

SELECT 'identity' AS kind, manager_id, NULL::uuid AS stack_id, 'not 1 to 255 characters on one line' AS finding
FROM stackmgr.managers
WHERE manager_id BETWEEN :'first' AND :'last'
    AND (length(identity_id) NOT BETWEEN 1 AND 255 OR identity_id ~ '[[:cntrl:]]')
UNION ALL
SELECT found.kind, manager_id, stack_id, found.finding
FROM stackmgr.stacks AS stacks
LEFT JOIN stackmgr.managers AS managers USING (manager_id)
LEFT JOIN stackmgr.stack_revisions AS revisions USING (manager_id, stack_id, revision_number)
LEFT JOIN (
    SELECT manager_id, stack_id, count(*) AS number
    FROM stackmgr.creation_receipts
    WHERE manager_id BETWEEN :'first' AND :'last'
    GROUP BY manager_id, stack_id
) AS receipts USING (manager_id, stack_id)
CROSS JOIN LATERAL (VALUES
    (managers.external_id IS NULL, 'no_manager', 'is being erased, or managers erase must run again'),
    (revisions.revision_id IS NULL, 'no_revision', 'has no revision of its number'),
    (revisions.revision_id IS NOT NULL
        AND (stacks.revision_id, stacks.name, stacks.allocation::text, stacks.preset)
            IS DISTINCT FROM (revisions.revision_id, revisions.name, revisions.allocation::text, revisions.preset),
        'current_row', 'differs from its last revision'),
    (receipts.number IS NULL, 'no_receipt', 'has no receipt: a retry would create it again'),
    (receipts.number > 1, 'receipts', 'has several receipts')
) AS found (is_found, kind, finding)
WHERE manager_id BETWEEN :'first' AND :'last' AND found.is_found
UNION ALL
SELECT found.kind, manager_id, stack_id, format('revision %s %s', revisions.revision_number, found.finding)
FROM (
    SELECT
        *,
        lag(revision_number, 1, 0) OVER history AS previous_number,
        lag(allocation::text) OVER history AS previous_allocation,
        lag(created_at) OVER history AS previous_time
    FROM stackmgr.stack_revisions
    WHERE manager_id BETWEEN :'first' AND :'last'
    WINDOW history AS (PARTITION BY manager_id, stack_id ORDER BY revision_number)
) AS revisions
LEFT JOIN stackmgr.stacks AS stacks USING (manager_id, stack_id)
-- Without the constraint, "stackmgr check" reports it.
LEFT JOIN (
    SELECT pg_get_constraintdef(oid) AS known FROM pg_catalog.pg_constraint
    WHERE connamespace = 'stackmgr'::regnamespace AND conname = 'preset_is_known'
) AS presets ON true
CROSS JOIN LATERAL (VALUES
    (stacks.revision_id IS NULL, 'no_stack', 'belongs to no stack'),
    (revisions.revision_number > stacks.revision_number, 'current_row', 'is later than the current row'),
    (revisions.revision_number <> previous_number + 1 AND NOT (:{?archived} AND previous_number = 1),
        'revision_gap', 'does not follow the one before'),
    (stackmgr.name_is_blank(revisions.name) IS NOT FALSE, 'name', 'has a blank name or none'),
    (revisions.preset IS NULL OR strpos(presets.known, quote_literal(revisions.preset)) = 0,
        'preset', 'has an unknown preset'),
    (revisions.allocation IS NULL
        OR (revisions.allocation::text IS DISTINCT FROM previous_allocation
            AND NOT stackmgr.allocation_is_normalised(revisions.allocation)),
        'allocation', 'has an allocation that breaks a rule'),
    (revisions.created_at < previous_time - interval '1 minute' OR revisions.created_at > now() + interval '1 minute',
        'time', 'is older than the one before, or in the future')
) AS found (is_found, kind, finding)
WHERE found.is_found
UNION ALL
SELECT 'revision_id', manager_id, stack_id, format('revision %s has the id of another one', revision_number)
FROM (
    SELECT manager_id, stack_id, revision_number, count(*) OVER (PARTITION BY revision_id) AS number
    FROM stackmgr.stack_revisions
    WHERE manager_id BETWEEN :'first' AND :'last'
) AS ids
WHERE number > 1
UNION ALL
SELECT found.kind, receipts.manager_id, receipts.stack_id, found.finding
FROM stackmgr.creation_receipts AS receipts
LEFT JOIN stackmgr.stacks AS stacks USING (manager_id, stack_id)
LEFT JOIN stackmgr.stack_revisions AS revisions
    ON revisions.manager_id = receipts.manager_id AND revisions.stack_id = receipts.stack_id
    AND revisions.revision_number = 1
CROSS JOIN LATERAL (
    -- The name as the service writes it in JSON: of characters between space and tilde, to_json does the same.
    SELECT CASE WHEN revisions.name COLLATE "C" ~ '^[ -~]*$' THEN to_json(revisions.name::text)::text ELSE (
        SELECT string_agg(CASE
            WHEN ascii(letter) < 127 THEN letter
            WHEN ascii(letter) < 65536 THEN '\u' || lpad(to_hex(ascii(letter)), 4, '0')
            ELSE '\u' || to_hex(55232 + ascii(letter) / 1024) || '\u' || to_hex(56320 + ascii(letter) % 1024)
        END, '' ORDER BY place)
        FROM string_to_table(to_json(revisions.name::text)::text, NULL) WITH ORDINALITY AS letters (letter, place)
    ) END AS name
) AS json
CROSS JOIN LATERAL (VALUES
    (stacks.revision_id IS NULL, 'no_stack', 'the receipt belongs to no stack'),
    (revisions.revision_id IS NOT NULL AND receipts.input_digest <> sha256(convert_to(
        format(E'[%s,"%s"]\n%s', json.name, revisions.preset, revisions.allocation), 'UTF8')),
        'digest', 'receipt and revision 1 differ: an identical retry would be 409'),
    (receipts.created_at <> revisions.created_at OR stacks.created_at <> revisions.created_at,
        'time', 'stack, receipt and revision 1 are of different times')
) AS found (is_found, kind, finding)
WHERE receipts.manager_id BETWEEN :'first' AND :'last' AND found.is_found
ORDER BY manager_id, stack_id, kind, finding;
SELECT :ROW_COUNT > 0 AS has_findings \gset
\if :ERROR
ROLLBACK;
SELECT pg_terminate_backend(pg_backend_pid());
\endif
COMMIT;
\set ON_ERROR_STOP on
\if :has_findings
DO $$ BEGIN RAISE EXCEPTION 'the audit has findings'; END $$;
\endif
