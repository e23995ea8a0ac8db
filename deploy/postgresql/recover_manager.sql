-- Put back one manager from the files of copy_manager.sql, in one transaction, while the service runs: for a DBA, as a
-- login that may assume stackmgr_owner.
--
--     psql -X -d stackmgr -v folder=FOLDER -f recover_manager.sql
--     psql -X -d stackmgr -v folder=FOLDER -v revert=yes -f recover_manager.sql
--
-- Rows that are missing are inserted as the copy has them; a row that exists is never changed. If the database has other
-- rows under the same keys, or an older state of a stack, nothing is changed. With revert, each stack whose
-- configuration differs from the copy's gets a further revision, which has it; revisions since then stay in the history.
--
-- Keys are put back only with a manager that was erased: one that was valid in the copy is valid again. The record of the
-- erasure is printed and deleted, so that nobody repeats it. Hold the manager first if its erasure is not finished.
--
-- Locks the manager's row, then the record of its erasure, as managers erase and managers hold do; with revert, the rows
-- of the manager's stacks. Requests of others wait for nothing.

\set ON_ERROR_STOP on

\if :{?revert} \else \set revert no \endif

BEGIN;
SET LOCAL ROLE stackmgr_owner;
SET LOCAL search_path = pg_catalog;
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = '10s';
\encoding UTF8
\cd :folder

CREATE UNLOGGED TABLE stackmgr.copied_managers (LIKE stackmgr.managers);
CREATE UNLOGGED TABLE stackmgr.copied_rebindings (LIKE stackmgr.manager_rebindings);
CREATE UNLOGGED TABLE stackmgr.copied_keys (LIKE stackmgr.api_keys);
CREATE UNLOGGED TABLE stackmgr.copied_slots (LIKE stackmgr.api_key_quota_slots);
CREATE UNLOGGED TABLE stackmgr.copied_queues (LIKE stackmgr.api_key_quota_queues);
CREATE UNLOGGED TABLE stackmgr.copied_stacks (LIKE stackmgr.stacks);
CREATE UNLOGGED TABLE stackmgr.copied_revisions (LIKE stackmgr.stack_revisions);
CREATE UNLOGGED TABLE stackmgr.copied_receipts (LIKE stackmgr.creation_receipts);

\copy stackmgr.copied_managers FROM managers.tsv (HEADER MATCH)
\copy stackmgr.copied_rebindings FROM manager_rebindings.tsv (HEADER MATCH)
\copy stackmgr.copied_keys FROM api_keys.tsv (HEADER MATCH)
\copy stackmgr.copied_slots FROM api_key_quota_slots.tsv (HEADER MATCH)
\copy stackmgr.copied_queues FROM api_key_quota_queues.tsv (HEADER MATCH)
\copy stackmgr.copied_stacks FROM stacks.tsv (HEADER MATCH)
\copy stackmgr.copied_revisions FROM stack_revisions.tsv (HEADER MATCH)
\copy stackmgr.copied_receipts FROM creation_receipts.tsv (HEADER MATCH)
ANALYZE stackmgr.copied_stacks, stackmgr.copied_revisions, stackmgr.copied_receipts;

-- Keys of a manager that is bound are those of the database, also where its external id has changed since.
DO $$
DECLARE
    saved   stackmgr.managers;
    erasure stackmgr.manager_erasures;
BEGIN
    SELECT * INTO STRICT saved FROM stackmgr.copied_managers;
    PERFORM FROM stackmgr.managers WHERE manager_id = saved.manager_id FOR UPDATE;
    IF FOUND THEN
        DELETE FROM stackmgr.copied_queues;
        DELETE FROM stackmgr.copied_slots;
        DELETE FROM stackmgr.copied_keys;
    END IF;
    SELECT * INTO erasure FROM stackmgr.manager_erasures WHERE manager_id = saved.manager_id FOR UPDATE;
    IF erasure.manager_id IS NULL THEN
        RETURN;
    END IF;
    IF erasure.finished_at IS NULL AND NOT EXISTS (
        SELECT FROM stackmgr.manager_holds WHERE manager_id = saved.manager_id AND released_at IS NULL
    ) THEN
        RAISE EXCEPTION 'the erasure of this manager is not finished: hold the manager first';
    END IF;
    -- The erasure revoked them all when it began.
    UPDATE stackmgr.api_keys
    SET revoked_at = NULL
    WHERE revoked_at = erasure.begun_at
        AND key_id IN (SELECT key_id FROM stackmgr.copied_keys WHERE revoked_at IS NULL);
END
$$;

INSERT INTO stackmgr.managers SELECT * FROM stackmgr.copied_managers ON CONFLICT (manager_id) DO NOTHING;
INSERT INTO stackmgr.manager_rebindings SELECT * FROM stackmgr.copied_rebindings ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.api_keys SELECT * FROM stackmgr.copied_keys ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.api_key_quota_slots SELECT * FROM stackmgr.copied_slots ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.api_key_quota_queues SELECT * FROM stackmgr.copied_queues ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.stacks SELECT * FROM stackmgr.copied_stacks ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.stack_revisions SELECT * FROM stackmgr.copied_revisions ON CONFLICT DO NOTHING;
INSERT INTO stackmgr.creation_receipts SELECT * FROM stackmgr.copied_receipts ON CONFLICT DO NOTHING;

-- Revisions and receipts never change, and a stack only advances.
DO $$
BEGIN
    IF EXISTS (
        SELECT
        FROM stackmgr.copied_stacks AS copied
        JOIN stackmgr.stacks AS stacks ON stacks.manager_id = copied.manager_id AND stacks.stack_id = copied.stack_id
        WHERE stacks.revision_number < copied.revision_number
    ) OR EXISTS (
        SELECT
        FROM stackmgr.copied_revisions AS copied
        JOIN stackmgr.stack_revisions AS revisions
            ON revisions.manager_id = copied.manager_id
            AND revisions.stack_id = copied.stack_id
            AND revisions.revision_number = copied.revision_number
        WHERE revisions::text <> copied::text
    ) OR EXISTS (
        SELECT
        FROM stackmgr.copied_receipts AS copied
        JOIN stackmgr.creation_receipts AS receipts
            ON receipts.manager_id = copied.manager_id AND receipts.idempotency_key = copied.idempotency_key
        WHERE receipts::text <> copied::text
    ) THEN
        RAISE EXCEPTION 'the database has another history of this manager than the copy: nothing is changed';
    END IF;
END
$$;

UPDATE stackmgr.manager_holds SET bound_manager_id = manager_id
WHERE manager_id = (SELECT manager_id FROM stackmgr.copied_managers) AND released_at IS NULL;
DELETE FROM stackmgr.manager_erasures
WHERE manager_id = (SELECT manager_id FROM stackmgr.copied_managers)
RETURNING *;

\if :revert
WITH reverted AS (
    UPDATE stackmgr.stacks AS stacks
    SET
        revision_id = gen_random_uuid(),
        revision_number = stacks.revision_number + 1,
        name = copied.name,
        allocation = copied.allocation,
        preset = copied.preset
    FROM stackmgr.copied_stacks AS copied
    WHERE stacks.manager_id = copied.manager_id
        AND stacks.stack_id = copied.stack_id
        AND (stacks.name, stacks.allocation::text, stacks.preset)
            <> (copied.name, copied.allocation::text, copied.preset)
    RETURNING stacks.*
)
INSERT INTO stackmgr.stack_revisions (
    manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id
)
SELECT
    manager_id, stack_id, revision_number, revision_id, name, allocation, preset, session_user, 'recover_manager.sql'
FROM reverted;
\endif

DROP TABLE
    stackmgr.copied_managers, stackmgr.copied_rebindings, stackmgr.copied_keys, stackmgr.copied_slots,
    stackmgr.copied_queues, stackmgr.copied_stacks, stackmgr.copied_revisions, stackmgr.copied_receipts;
COMMIT;
