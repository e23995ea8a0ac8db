-- 0005_reader: a read-only role, views for people who read the tables, and a comment on every object.
--
-- stackmgr_reader is assumed by the commands that only read (`stackmgr stacks`, `audit`, `tokens impact`) and
-- by DBAs. It reads everything but the digests of keys, and cannot log in. `deploy/postgresql/roles.sql`
-- creates it; otherwise the connecting login needs CREATEROLE.
--
-- No table is rewritten or scanned; a comment takes a lock that lets reads and writes pass.

DO $$
BEGIN
    -- Roles belong to the whole cluster, and another database of it may be migrated at this moment.
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'stackmgr_reader') THEN
            CREATE ROLE stackmgr_reader NOLOGIN;
        END IF;
    EXCEPTION
        WHEN duplicate_object OR unique_violation THEN
            NULL;
        WHEN insufficient_privilege THEN
            RAISE EXCEPTION 'the role stackmgr_reader does not exist and this login may not create it: '
                'run deploy/postgresql/roles.sql as a superuser first';
    END;
    -- As in 0001: from PostgreSQL 16 on, only the SET option lets a member assume the role.
    BEGIN
        IF NOT pg_has_role(
            'stackmgr_reader',
            CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
        ) THEN
            GRANT stackmgr_reader TO CURRENT_USER;
        END IF;
    EXCEPTION WHEN insufficient_privilege OR unique_violation THEN
        NULL;
    END;
END
$$;

SET LOCAL ROLE stackmgr_owner;

GRANT USAGE ON SCHEMA stackmgr TO stackmgr_reader;
GRANT SELECT ON
    stackmgr.schema_migrations,
    stackmgr.managers,
    stackmgr.manager_rebindings,
    stackmgr.api_key_quota_slots,
    stackmgr.stacks,
    stackmgr.stack_revisions,
    stackmgr.creation_receipts
TO stackmgr_reader;
GRANT SELECT (
    key_id, external_id, identity_id, label, last_four, created_at, expires_at, revoked_at,
    quota_id, quota_limit, quota_seconds, last_used_at, successor_id
) ON stackmgr.api_keys TO stackmgr_reader;

CREATE VIEW stackmgr.current_stack AS
SELECT
    managers.external_id,
    stacks.manager_id,
    stacks.stack_id,
    stacks.name,
    stacks.allocation,
    json_array_length(stacks.allocation) AS tokens,
    stacks.preset,
    stacks.revision_number,
    stacks.revision_id,
    stacks.created_at,
    stack_revisions.created_at AS revised_at,
    stack_revisions.key_id,
    api_keys.label AS key_label,
    stack_revisions.request_id
FROM stackmgr.stacks AS stacks
JOIN stackmgr.managers AS managers ON managers.manager_id = stacks.manager_id
LEFT JOIN stackmgr.stack_revisions AS stack_revisions
    ON stack_revisions.manager_id = stacks.manager_id
    AND stack_revisions.stack_id = stacks.stack_id
    AND stack_revisions.revision_number = stacks.revision_number
LEFT JOIN stackmgr.api_keys AS api_keys ON api_keys.key_id::text = stack_revisions.key_id;

CREATE VIEW stackmgr.revision_diff AS
SELECT
    later.manager_id,
    later.stack_id,
    later.revision_number,
    later.revision_id,
    later.created_at,
    later.identity_id,
    later.key_id,
    later.request_id,
    CASE WHEN later.name <> earlier.name THEN earlier.name::text END AS name_before,
    CASE WHEN later.name <> earlier.name THEN later.name::text END AS name_after,
    CASE WHEN later.preset <> earlier.preset THEN earlier.preset::text END AS preset_before,
    CASE WHEN later.preset <> earlier.preset THEN later.preset::text END AS preset_after,
    weights.token_address,
    weights.weight_bps_before,
    weights.weight_bps_after
FROM stackmgr.stack_revisions AS later
JOIN stackmgr.stack_revisions AS earlier
    ON earlier.manager_id = later.manager_id
    AND earlier.stack_id = later.stack_id
    AND earlier.revision_number = later.revision_number - 1
LEFT JOIN LATERAL (
    SELECT
        coalesce(a.token_address, b.token_address) AS token_address,
        b.weight_bps AS weight_bps_before,
        a.weight_bps AS weight_bps_after
    FROM json_to_recordset(later.allocation) AS a (token_address text, weight_bps integer)
    FULL JOIN json_to_recordset(earlier.allocation) AS b (token_address text, weight_bps integer)
        ON a.token_address = b.token_address
    WHERE a.weight_bps IS DISTINCT FROM b.weight_bps
) AS weights ON true;

CREATE VIEW stackmgr.receipt_age AS
SELECT
    managers.external_id,
    creation_receipts.manager_id,
    creation_receipts.stack_id,
    creation_receipts.created_at,
    now() - creation_receipts.created_at AS age,
    octet_length(creation_receipts.idempotency_key) AS idempotency_key_bytes
FROM stackmgr.creation_receipts AS creation_receipts
JOIN stackmgr.managers AS managers ON managers.manager_id = creation_receipts.manager_id;

GRANT SELECT ON stackmgr.current_stack, stackmgr.revision_diff, stackmgr.receipt_age TO stackmgr_reader;

COMMENT ON SCHEMA stackmgr IS
    'Stacks of wealth managers: named target allocations with a rebalance preset. Configuration only.';
COMMENT ON FUNCTION stackmgr.name_is_blank(text) IS
    'Whether every character is whitespace as Python''s str.isspace() defines it, in any locale.';
COMMENT ON FUNCTION stackmgr.allocation_is_normalised(json) IS
    'Whether the allocation has 1 to 30 items in the stored form: ascending lowercase addresses, total 10000.';
COMMENT ON DOMAIN stackmgr.stack_name IS 'Name of a stack: not blank, kept exactly.';
COMMENT ON DOMAIN stackmgr.allocation IS 'Allocation in normalized form, the text that responses carry.';
COMMENT ON DOMAIN stackmgr.preset IS 'Rebalance preset: hourly, daily, weekly or monthly.';

COMMENT ON TABLE stackmgr.schema_migrations IS 'One row for each applied file of sql/migrations.';
COMMENT ON COLUMN stackmgr.schema_migrations.version IS 'Number of the file.';
COMMENT ON COLUMN stackmgr.schema_migrations.slug IS 'Name of the file, without number and extension.';
COMMENT ON COLUMN stackmgr.schema_migrations.checksum IS 'SHA-256 of the file when it was applied.';
COMMENT ON COLUMN stackmgr.schema_migrations.applied_at IS 'Start of the transaction that applied it.';
COMMENT ON COLUMN stackmgr.schema_migrations.applied_by IS 'Login that applied it.';

COMMENT ON COLUMN stackmgr.managers.manager_id IS 'Internal id; leads every key of the manager''s tables.';
COMMENT ON COLUMN stackmgr.managers.external_id IS 'Account of the manager: a UUID that the operator assigns.';
COMMENT ON COLUMN stackmgr.managers.identity_id IS 'The verifier''s id of the key holder.';
COMMENT ON COLUMN stackmgr.managers.created_at IS 'Time of the first authenticated request.';

COMMENT ON COLUMN stackmgr.api_keys.key_digest IS 'SHA-256 of the key. Not granted to stackmgr_reader.';
COMMENT ON COLUMN stackmgr.api_keys.key_id IS 'Id of the key: for operators, logs and stack_revisions.key_id.';
COMMENT ON COLUMN stackmgr.api_keys.external_id IS 'Account that the key authenticates.';
COMMENT ON COLUMN stackmgr.api_keys.identity_id IS 'Identity id of the holder, derived from external_id.';
COMMENT ON COLUMN stackmgr.api_keys.label IS 'Note of the operator; may be empty.';
COMMENT ON COLUMN stackmgr.api_keys.last_four IS 'Last four characters of the key, to tell keys apart.';
COMMENT ON COLUMN stackmgr.api_keys.created_at IS 'Time of issue.';
COMMENT ON COLUMN stackmgr.api_keys.expires_at IS 'Rejected from this time on; null: does not expire.';
COMMENT ON COLUMN stackmgr.api_keys.revoked_at IS 'Rejected since this time; null: not revoked.';
COMMENT ON COLUMN stackmgr.api_keys.quota_limit IS 'Requests allowed in quota_seconds; null: no quota.';
COMMENT ON COLUMN stackmgr.api_keys.quota_seconds IS 'Length of the quota''s window; null: no quota.';
COMMENT ON COLUMN stackmgr.api_keys.successor_id IS 'Key that replaces this one since its rotation.';

COMMENT ON COLUMN stackmgr.api_key_quota_slots.quota_id IS 'Quota, as in api_keys.quota_id.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.slot IS 'Number of the slot, 1 to quota_limit.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.granted_at IS 'Last grant; free again quota_seconds later.';

COMMENT ON COLUMN stackmgr.manager_rebindings.manager_id IS 'Manager that was rebound.';
COMMENT ON COLUMN stackmgr.manager_rebindings.rebound_at IS 'Time of the rebinding.';
COMMENT ON COLUMN stackmgr.manager_rebindings.rebound_by IS 'Login that rebound it.';
COMMENT ON COLUMN stackmgr.manager_rebindings.old_external_id IS 'External id before.';
COMMENT ON COLUMN stackmgr.manager_rebindings.old_identity_id IS 'Identity id before.';
COMMENT ON COLUMN stackmgr.manager_rebindings.new_external_id IS 'External id after.';
COMMENT ON COLUMN stackmgr.manager_rebindings.new_identity_id IS 'Identity id after.';

COMMENT ON COLUMN stackmgr.stacks.manager_id IS 'Owner.';
COMMENT ON COLUMN stackmgr.stacks.stack_id IS 'Id in the API; never changes.';
COMMENT ON COLUMN stackmgr.stacks.revision_id IS 'Current revision: current_revision_id and ETag of the API.';
COMMENT ON COLUMN stackmgr.stacks.revision_number IS 'Number of the current revision, from 1 without gaps.';
COMMENT ON COLUMN stackmgr.stacks.name IS 'Current name.';
COMMENT ON COLUMN stackmgr.stacks.allocation IS 'Current allocation.';
COMMENT ON COLUMN stackmgr.stacks.preset IS 'Current preset.';
COMMENT ON COLUMN stackmgr.stacks.created_at IS 'Time of the creation; orders the list.';

COMMENT ON COLUMN stackmgr.stack_revisions.manager_id IS 'Owner of the stack.';
COMMENT ON COLUMN stackmgr.stack_revisions.stack_id IS 'Stack.';
COMMENT ON COLUMN stackmgr.stack_revisions.revision_number IS 'Number within the stack; 1 is its creation.';
COMMENT ON COLUMN stackmgr.stack_revisions.revision_id IS 'Id of the revision: the ETag after this change.';
COMMENT ON COLUMN stackmgr.stack_revisions.name IS 'Complete name after this change.';
COMMENT ON COLUMN stackmgr.stack_revisions.allocation IS 'Complete allocation after this change.';
COMMENT ON COLUMN stackmgr.stack_revisions.preset IS 'Preset after this change.';
COMMENT ON COLUMN stackmgr.stack_revisions.identity_id IS 'Verified identity that made the change.';
COMMENT ON COLUMN stackmgr.stack_revisions.request_id IS 'First 255 characters of the request''s X-Request-Id.';
COMMENT ON COLUMN stackmgr.stack_revisions.created_at IS 'Time of the change.';

COMMENT ON COLUMN stackmgr.creation_receipts.manager_id IS 'Manager; keys of two managers do not collide.';
COMMENT ON COLUMN stackmgr.creation_receipts.idempotency_key IS 'Idempotency-Key, compared exactly.';
COMMENT ON COLUMN stackmgr.creation_receipts.input_digest IS
    'SHA-256 of the normalized input: equals that of the stack''s revision 1.';
COMMENT ON COLUMN stackmgr.creation_receipts.stack_id IS 'Stack that the key created.';
COMMENT ON COLUMN stackmgr.creation_receipts.created_at IS 'Time of the creation.';

COMMENT ON VIEW stackmgr.current_stack IS
    'Each stack as it is now, with the account of its manager and the key and request of its last change.';
COMMENT ON COLUMN stackmgr.current_stack.tokens IS 'Items of the allocation, those of weight 0 included.';
COMMENT ON COLUMN stackmgr.current_stack.revised_at IS 'Time of the last change.';
COMMENT ON COLUMN stackmgr.current_stack.key_label IS 'Label of the key of the last change, where it is local.';
COMMENT ON VIEW stackmgr.revision_diff IS
    'What each update changed: one row for each token whose weight changed, or one without a token. '
    'Select by manager_id and stack_id; a _before that is null stands for a token that was absent.';
COMMENT ON VIEW stackmgr.receipt_age IS
    'Age of each creation receipt, without its key. Receipts never expire.';
