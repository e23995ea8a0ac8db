-- 0001_schema: roles, domains, tables, indexes, views and rights.
--
-- Applied by `stackmgr migrate`, as the connecting login; everything below the roles belongs to stackmgr_owner. That
-- login needs CREATE on the database, and either CREATEROLE or the roles and a membership in stackmgr_owner, which
-- deploy/postgresql/roles.sql makes.
--
-- Nothing is locked here that anybody uses. A later file says at its head which lock each statement takes on which
-- table, for how long, and whether the table is read or rewritten under it. It names a function with its parameters:
-- the next release may add one of the same name, and `stackmgr migrate` runs each GRANT and REVOKE again.

-- Roles ---------------------------------------------------------------------------------------------------------------
--
-- stackmgr_owner owns every object; the operator's commands assume it. stackmgr_app is the service, and
-- stackmgr_reader whoever only reads. None can log in: they are granted to the logins of a deployment.

DO $$
DECLARE
    wanted text;
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of this database is %, and must be UTF8', current_setting('server_encoding');
    END IF;
    FOREACH wanted IN ARRAY ARRAY['stackmgr_owner', 'stackmgr_app', 'stackmgr_reader'] LOOP
        -- Roles belong to the whole cluster, and another database of it may be migrated at this moment: the loser of
        -- either race waits for the winner and finds the role or the membership.
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'the role % does not exist and this login may not create it: '
                    'run deploy/postgresql/roles.sql as a superuser first', wanted;
        END;
        -- From PostgreSQL 16 on, only the SET option of a membership lets its holder assume the role, and the creator
        -- of a role is a member without it.
        BEGIN
            IF NOT pg_has_role(
                wanted,
                CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
            ) THEN
                EXECUTE format('GRANT %I TO CURRENT_USER', wanted);
            END IF;
        EXCEPTION WHEN insufficient_privilege OR unique_violation THEN
            -- If stackmgr_owner cannot be assumed, the next statement fails and says so.
            NULL;
        END;
    END LOOP;
END
$$;

CREATE SCHEMA stackmgr AUTHORIZATION stackmgr_owner;

SET LOCAL ROLE stackmgr_owner;

COMMENT ON SCHEMA stackmgr IS
    'Stacks of wealth managers: named target allocations with a rebalance preset. Configuration only.';

GRANT USAGE ON SCHEMA stackmgr TO stackmgr_app, stackmgr_reader;

-- The rights that PUBLIC has by default; it has none to tables.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;

-- History of migrations -----------------------------------------------------------------------------------------------

CREATE TABLE stackmgr.schema_migrations (
    version     integer     NOT NULL,
    slug        text        NOT NULL,
    checksum    bytea       NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now(),
    applied_by  text        NOT NULL DEFAULT session_user,
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (version),
    CONSTRAINT schema_migrations_checksum_is_sha256 CHECK (octet_length(checksum) = 32)
);

COMMENT ON TABLE stackmgr.schema_migrations IS 'One row for each applied file of sql/migrations.';
COMMENT ON COLUMN stackmgr.schema_migrations.version IS 'Number of the file.';
COMMENT ON COLUMN stackmgr.schema_migrations.slug IS 'Name of the file, without number and extension.';
COMMENT ON COLUMN stackmgr.schema_migrations.checksum IS 'SHA-256 of the file when it was applied.';
COMMENT ON COLUMN stackmgr.schema_migrations.applied_at IS 'Start of the transaction that applied it.';
COMMENT ON COLUMN stackmgr.schema_migrations.applied_by IS 'Login that applied it.';

GRANT SELECT ON stackmgr.schema_migrations TO stackmgr_app, stackmgr_reader;

-- Configuration of a stack --------------------------------------------------------------------------------------------
--
-- These domains state once what a configuration may contain. A value is checked when it is converted to its domain,
-- and not again when an update keeps it or a revision copies it.

-- The characters for which Python's str.isspace() is true, so that the rule is that of the service in any locale.
CREATE FUNCTION stackmgr.name_is_blank(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN btrim(
    name,
    U&'\0009\000A\000B\000C\000D\001C\001D\001E\001F\0020\0085\00A0\1680'
    '\2000\2001\2002\2003\2004\2005\2006\2007\2008\2009\200A\2028\2029\202F\205F\3000'
) = '';

-- 1 to 30 items; addresses lowercase, ascending and therefore unique; weights 0 to 10000 that total 10000; and exactly
-- the text that responses carry, because it is sent as it was stored.
--
-- The pattern leaves to the rules of JSON that single commas separate the items and that no number has a leading zero,
-- and to length() the length of an address, because a repetition of forty costs forty states of the matcher.
-- The search_path is pinned: a session's could put other functions and operators before those of pg_catalog. The
-- function above is bound to its own when it is created.
CREATE FUNCTION stackmgr.allocation_is_normalised(allocation json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    item     record;
    previous text := '';
    total    integer := 0;
    items    integer := 0;
BEGIN
    IF allocation::text !~ '^\[(?:\{"token_address":"0x[0-9a-f]+","weight_bps":[0-9]{1,5}\},?)+\]$' THEN
        RETURN false;
    END IF;
    FOR item IN
        SELECT token_address, weight_bps
        FROM json_to_recordset(allocation) AS parsed (token_address text, weight_bps integer)
    LOOP
        items := items + 1;
        IF items > 30 OR length(item.token_address) <> 42 OR item.token_address COLLATE "C" <= previous THEN
            RETURN false;
        END IF;
        previous := item.token_address;
        total := total + item.weight_bps;
    END LOOP;
    RETURN total = 10000;
END
$$;

CREATE DOMAIN stackmgr.stack_name AS text
    CONSTRAINT stack_name_is_not_blank CHECK (NOT stackmgr.name_is_blank(VALUE));
CREATE DOMAIN stackmgr.allocation AS json
    CONSTRAINT allocation_is_normalised CHECK (stackmgr.allocation_is_normalised(VALUE));
CREATE DOMAIN stackmgr.preset AS text
    CONSTRAINT preset_is_known CHECK (VALUE IN ('hourly', 'daily', 'weekly', 'monthly'));

COMMENT ON FUNCTION stackmgr.name_is_blank(text) IS
    'Whether every character is whitespace as Python''s str.isspace() defines it, in any locale.';
COMMENT ON FUNCTION stackmgr.allocation_is_normalised(json) IS
    'Whether the allocation has 1 to 30 items in the stored form: ascending lowercase addresses, total 10000.';
COMMENT ON DOMAIN stackmgr.stack_name IS 'Name of a stack: not blank, kept exactly.';
COMMENT ON DOMAIN stackmgr.allocation IS 'Allocation in normalized form, the text that responses carry.';
COMMENT ON DOMAIN stackmgr.preset IS 'Rebalance preset: hourly, daily, weekly or monthly.';

-- For whoever writes, and for whoever reads on Citus, where a node checks the values that it receives from another.
GRANT EXECUTE ON FUNCTION stackmgr.name_is_blank(text), stackmgr.allocation_is_normalised(json)
    TO stackmgr_app, stackmgr_reader;

-- Managers and their keys ---------------------------------------------------------------------------------------------

CREATE TABLE stackmgr.managers (
    manager_id   uuid        NOT NULL,
    external_id  uuid        NOT NULL,
    identity_id  text        NOT NULL COLLATE "C",
    created_at   timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT managers_pkey PRIMARY KEY (manager_id),
    CONSTRAINT managers_external_id_key UNIQUE (external_id),
    CONSTRAINT managers_identity_id_key UNIQUE (identity_id),
    CONSTRAINT managers_identity_id_is_not_empty CHECK (identity_id <> '')
);

COMMENT ON TABLE stackmgr.managers IS
    'The binding of an external id to an identity id, made by the first authenticated request.';
COMMENT ON COLUMN stackmgr.managers.manager_id IS 'Internal id; leads every key of the manager''s tables.';
COMMENT ON COLUMN stackmgr.managers.external_id IS 'Account of the manager: a UUID that the operator assigns.';
COMMENT ON COLUMN stackmgr.managers.identity_id IS 'The verifier''s id of the key holder.';
COMMENT ON COLUMN stackmgr.managers.created_at IS 'Time of the first authenticated request.';

GRANT SELECT ON stackmgr.managers TO stackmgr_app, stackmgr_reader;
GRANT INSERT (manager_id, external_id, identity_id) ON stackmgr.managers TO stackmgr_app;

CREATE TABLE stackmgr.manager_rebindings (
    manager_id        uuid        NOT NULL,
    rebound_at        timestamptz NOT NULL DEFAULT now(),
    rebound_by        text        NOT NULL DEFAULT session_user,
    old_external_id   uuid        NOT NULL,
    old_identity_id   text        NOT NULL COLLATE "C",
    new_external_id   uuid        NOT NULL,
    new_identity_id   text        NOT NULL COLLATE "C",
    CONSTRAINT manager_rebindings_pkey PRIMARY KEY (manager_id, rebound_at),
    CONSTRAINT manager_rebindings_manager_id_fkey
        FOREIGN KEY (manager_id) REFERENCES stackmgr.managers (manager_id)
);

COMMENT ON TABLE stackmgr.manager_rebindings IS
    'Append-only: which manager was given to which other identity, by whom.';
COMMENT ON COLUMN stackmgr.manager_rebindings.manager_id IS 'Manager that was rebound.';
COMMENT ON COLUMN stackmgr.manager_rebindings.rebound_at IS 'Time of the rebinding.';
COMMENT ON COLUMN stackmgr.manager_rebindings.rebound_by IS 'Login that rebound it.';
COMMENT ON COLUMN stackmgr.manager_rebindings.old_external_id IS 'External id before.';
COMMENT ON COLUMN stackmgr.manager_rebindings.old_identity_id IS 'Identity id before.';
COMMENT ON COLUMN stackmgr.manager_rebindings.new_external_id IS 'External id after.';
COMMENT ON COLUMN stackmgr.manager_rebindings.new_identity_id IS 'Identity id after.';

GRANT SELECT ON stackmgr.manager_rebindings TO stackmgr_reader;

-- Outlives the manager, so nothing refers to it.
CREATE TABLE stackmgr.manager_erasures (
    manager_id   uuid        NOT NULL,
    external_id  uuid        NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT now(),
    begun_by     text        NOT NULL DEFAULT session_user,
    finished_at  timestamptz,
    stacks       bigint      NOT NULL DEFAULT 0,
    revisions    bigint      NOT NULL DEFAULT 0,
    receipts     bigint      NOT NULL DEFAULT 0,
    CONSTRAINT manager_erasures_pkey PRIMARY KEY (manager_id)
);

COMMENT ON TABLE stackmgr.manager_erasures IS
    'One row for each manager erased by stackmgr managers erase: who, when, and how many rows.';
COMMENT ON COLUMN stackmgr.manager_erasures.manager_id IS 'The manager, which no longer exists.';
COMMENT ON COLUMN stackmgr.manager_erasures.external_id IS 'The external id that the manager was bound to.';
COMMENT ON COLUMN stackmgr.manager_erasures.begun_at IS 'When the erasure began and the keys were revoked.';
COMMENT ON COLUMN stackmgr.manager_erasures.begun_by IS 'The login that began it.';
COMMENT ON COLUMN stackmgr.manager_erasures.finished_at IS 'When the last row was deleted; null if interrupted.';
COMMENT ON COLUMN stackmgr.manager_erasures.stacks IS 'How many stacks were deleted.';
COMMENT ON COLUMN stackmgr.manager_erasures.revisions IS 'How many revisions were deleted.';
COMMENT ON COLUMN stackmgr.manager_erasures.receipts IS 'How many creation receipts were deleted.';

GRANT SELECT ON stackmgr.manager_erasures TO stackmgr_reader;

-- The history of holds outlives the manager. While a hold is in force, its second reference to the manager lets nobody
-- delete the binding, which every erasure begins with. No index serves that reference: the table has few rows.
CREATE TABLE stackmgr.manager_holds (
    manager_id        uuid        NOT NULL,
    held_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    held_by           text        NOT NULL DEFAULT session_user,
    reason            text        NOT NULL,
    released_at       timestamptz,
    released_by       text,
    bound_manager_id  uuid,
    CONSTRAINT manager_holds_pkey PRIMARY KEY (manager_id, held_at),
    CONSTRAINT manager_holds_bound_manager_id_fkey
        FOREIGN KEY (bound_manager_id) REFERENCES stackmgr.managers (manager_id),
    CONSTRAINT manager_holds_reason_is_not_blank CHECK (NOT stackmgr.name_is_blank(reason)),
    CONSTRAINT manager_holds_release_is_whole CHECK (num_nulls(released_at, released_by) IN (0, 2)),
    CONSTRAINT manager_holds_bound_manager_is_held
        CHECK (bound_manager_id IS NULL OR (bound_manager_id = manager_id AND released_at IS NULL))
);

CREATE UNIQUE INDEX manager_holds_in_force ON stackmgr.manager_holds (manager_id) WHERE released_at IS NULL;

COMMENT ON TABLE stackmgr.manager_holds IS
    'Append-only: one row for each hold of stackmgr managers hold, in force until it is released. '
    'Nothing deletes rows of a held manager.';
COMMENT ON COLUMN stackmgr.manager_holds.manager_id IS 'The manager, which may no longer exist after the release.';
COMMENT ON COLUMN stackmgr.manager_holds.held_at IS 'When the hold began.';
COMMENT ON COLUMN stackmgr.manager_holds.held_by IS 'Login that began it.';
COMMENT ON COLUMN stackmgr.manager_holds.reason IS 'Why, in the operator''s words.';
COMMENT ON COLUMN stackmgr.manager_holds.released_at IS 'When the hold ended; null: in force.';
COMMENT ON COLUMN stackmgr.manager_holds.released_by IS 'Login that ended it; null: in force.';
COMMENT ON COLUMN stackmgr.manager_holds.bound_manager_id IS
    'The manager again while the hold is in force; null afterwards, and where an erasure had begun before the hold.';

GRANT SELECT ON stackmgr.manager_holds TO stackmgr_reader;

CREATE TABLE stackmgr.api_keys (
    key_digest     bytea       NOT NULL,
    key_id         uuid        NOT NULL,
    external_id    uuid        NOT NULL,
    identity_id    text        NOT NULL COLLATE "C",
    label          text        NOT NULL DEFAULT '',
    last_four      text        NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz,
    revoked_at     timestamptz,
    quota_id       uuid,
    quota_limit    integer,
    quota_seconds  integer,
    last_used_at   timestamptz,
    successor_id   uuid,
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_digest),
    CONSTRAINT api_keys_key_id_key UNIQUE (key_id),
    CONSTRAINT api_keys_successor_id_fkey FOREIGN KEY (successor_id) REFERENCES stackmgr.api_keys (key_id),
    CONSTRAINT api_keys_key_digest_is_sha256 CHECK (octet_length(key_digest) = 32),
    CONSTRAINT api_keys_last_four_is_short CHECK (length(last_four) = 4),
    CONSTRAINT api_keys_quota_is_whole CHECK (num_nulls(quota_id, quota_limit, quota_seconds) IN (0, 3)),
    CONSTRAINT api_keys_quota_limit_is_bounded CHECK (quota_limit BETWEEN 1 AND 10000),
    CONSTRAINT api_keys_quota_seconds_is_bounded CHECK (quota_seconds BETWEEN 1 AND 86400)
);

-- Every request looks for its key. The tree of the primary key has three levels from some 20,000 keys on; a hash index
-- has one page for each value, however many keys there are.
CREATE INDEX api_keys_key_digest_hash ON stackmgr.api_keys USING hash (key_digest);
-- For the erasure of a manager: the keys of an account, and the predecessor of each key that is deleted, for which the
-- foreign key looks. Beside a million keys, deleting a hundred took 9.5 s without the second index and 3 ms with it.
CREATE INDEX api_keys_external_id ON stackmgr.api_keys (external_id);
CREATE INDEX api_keys_successor_id ON stackmgr.api_keys (successor_id) WHERE successor_id IS NOT NULL;

COMMENT ON TABLE stackmgr.api_keys IS
    'SHA-256 of each issued key, never the key. Not a tenant table: a key is known before its manager.';
COMMENT ON COLUMN stackmgr.api_keys.key_digest IS 'SHA-256 of the key. Not granted to stackmgr_reader.';
COMMENT ON COLUMN stackmgr.api_keys.key_id IS 'Id of the key: for operators, logs and stack_revisions.key_id.';
COMMENT ON COLUMN stackmgr.api_keys.external_id IS 'Account that the key authenticates.';
COMMENT ON COLUMN stackmgr.api_keys.identity_id IS 'Identity id of the holder, derived from external_id.';
COMMENT ON COLUMN stackmgr.api_keys.label IS 'Note of the operator; may be empty.';
COMMENT ON COLUMN stackmgr.api_keys.last_four IS 'Last four characters of the key, to tell keys apart.';
COMMENT ON COLUMN stackmgr.api_keys.created_at IS 'Time of issue.';
COMMENT ON COLUMN stackmgr.api_keys.expires_at IS 'Rejected from this time on; null: does not expire.';
COMMENT ON COLUMN stackmgr.api_keys.revoked_at IS 'Rejected since this time; null: not revoked.';
COMMENT ON COLUMN stackmgr.api_keys.quota_id IS
    'Quota of the key, which a rotated key and its successor share; null: no quota.';
COMMENT ON COLUMN stackmgr.api_keys.quota_limit IS 'Requests allowed in quota_seconds; null: no quota.';
COMMENT ON COLUMN stackmgr.api_keys.quota_seconds IS 'Length of the quota''s window; null: no quota.';
COMMENT ON COLUMN stackmgr.api_keys.last_used_at IS
    'Hour, in UTC, of the last recorded use; written at most once an hour, by no request.';
COMMENT ON COLUMN stackmgr.api_keys.successor_id IS 'Key that replaces this one since its rotation.';

GRANT SELECT ON stackmgr.api_keys TO stackmgr_app;
GRANT UPDATE (last_used_at) ON stackmgr.api_keys TO stackmgr_app;
GRANT SELECT (
    key_id, external_id, identity_id, label, last_four, created_at, expires_at, revoked_at,
    quota_id, quota_limit, quota_seconds, last_used_at, successor_id
) ON stackmgr.api_keys TO stackmgr_reader;

-- What makes an API key valid, and the guard with which each operation begins. Both functions are inlined into the
-- statements that use them.

CREATE FUNCTION stackmgr.api_key_state(revoked_at timestamptz, expires_at timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN expires_at <= now() THEN 'expired'
    ELSE 'valid'
END;

-- One row, or none. The manager and the key are each found by a parameter, so that no kept plan joins tables. A key
-- with a quota is verified before, because a quota is used up by a statement of its own.
CREATE FUNCTION stackmgr.caller(manager_id uuid, external_id uuid, identity_id text, key_digest bytea)
RETURNS TABLE (used_this_hour boolean)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1
AS $$
    SELECT coalesce(api_keys.last_used_at >= date_trunc('hour', now(), 'UTC'), caller.key_digest IS NULL)
    FROM stackmgr.managers AS managers
    LEFT JOIN stackmgr.api_keys AS api_keys ON api_keys.key_digest = caller.key_digest
    WHERE managers.manager_id = caller.manager_id
        AND managers.external_id = caller.external_id
        AND managers.identity_id = caller.identity_id
        AND (
            caller.key_digest IS NULL
            OR (
                api_keys.external_id = managers.external_id
                AND api_keys.identity_id = managers.identity_id
                AND api_keys.quota_id IS NULL
                AND stackmgr.api_key_state(api_keys.revoked_at, api_keys.expires_at) = 'valid'
            )
        )
$$;

COMMENT ON FUNCTION stackmgr.api_key_state(timestamptz, timestamptz) IS
    'State of an API key by the database''s clock: valid, revoked or expired.';
COMMENT ON FUNCTION stackmgr.caller(uuid, uuid, text, bytea) IS
    'One row if the manager has this binding and, unless key_digest is null, the key is valid, the manager''s and '
    'without a quota. used_this_hour is whether this hour''s use of the key is recorded.';

GRANT EXECUTE ON FUNCTION stackmgr.api_key_state(timestamptz, timestamptz) TO stackmgr_app, stackmgr_reader;
GRANT EXECUTE ON FUNCTION stackmgr.caller(uuid, uuid, text, bytea) TO stackmgr_app;

-- A quota of N requests in some seconds has N slots, each of which can be taken again once those seconds have passed:
-- no span of that length has more than N grants, and no request is rejected that would not exceed N. A request looks
-- at all slots of a nearly spent quota, so a quota of more than 100 has 100 slots with a queue of grants each.
--
-- Rows are updated in place: no index covers granted_at, and half of each page is left for the versions of a row,
-- which stay HOT.
CREATE TABLE stackmgr.api_key_quota_slots (
    quota_id    uuid        NOT NULL,
    slot        integer     NOT NULL,
    granted_at  timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT api_key_quota_slots_pkey PRIMARY KEY (quota_id, slot)
) WITH (fillfactor = 50);
CREATE TABLE stackmgr.api_key_quota_queues (
    quota_id    uuid           NOT NULL,
    slot        integer        NOT NULL,
    granted_at  timestamptz[]  NOT NULL,
    CONSTRAINT api_key_quota_queues_pkey PRIMARY KEY (quota_id, slot)
) WITH (fillfactor = 50);

COMMENT ON TABLE stackmgr.api_key_quota_slots IS 'When each request that a quota allows was last granted.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.quota_id IS 'Quota, as in api_keys.quota_id.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.slot IS 'Number of the slot, from 1.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.granted_at IS
    'Oldest grant of the slot; free again quota_seconds later.';
COMMENT ON TABLE stackmgr.api_key_quota_queues IS
    'The grants of each slot of a quota of more than 100; such a slot is taken again when its oldest grant may be.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.quota_id IS 'Quota, as in api_key_quota_slots.quota_id.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.slot IS 'Number of the slot.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.granted_at IS
    'When each request that the slot allows was last granted, oldest first.';

GRANT SELECT ON stackmgr.api_key_quota_slots, stackmgr.api_key_quota_queues TO stackmgr_app, stackmgr_reader;
GRANT UPDATE (granted_at) ON stackmgr.api_key_quota_slots, stackmgr.api_key_quota_queues TO stackmgr_app;

-- Stacks --------------------------------------------------------------------------------------------------------------
--
-- manager_id leads every primary and foreign key of the tables of a manager: a tenant is a key prefix, and the tables
-- can be distributed by it. `stacks` has the current state, so that no read needs the history and an update reads the
-- current state again under its row lock.

-- No foreign key leads to managers: its check would lock the manager's row in each create, and every two creates of one
-- manager at a time would make a multixact. A create uses the manager that it has just read, and only `stackmgr
-- managers erase` deletes one: the binding first, the rows after the longest time that a request can take.
CREATE TABLE stackmgr.stacks (
    manager_id       uuid                 NOT NULL,
    stack_id         uuid                 NOT NULL,
    revision_id      uuid                 NOT NULL,
    revision_number  integer              NOT NULL,
    name             stackmgr.stack_name  NOT NULL,
    allocation       stackmgr.allocation  NOT NULL,
    preset           stackmgr.preset      NOT NULL,
    created_at       timestamptz          NOT NULL DEFAULT now(),
    CONSTRAINT stacks_pkey PRIMARY KEY (manager_id, stack_id),
    CONSTRAINT stacks_revision_number_is_positive CHECK (revision_number >= 1)
) WITH (
    -- Room on each page for a second version of a row of any size from 1 token to 30: updates stay HOT.
    fillfactor = 75,
    -- A row of 30 tokens has 2.5 kB; compressed, a page of such rows would take twice as long to read.
    toast_tuple_target = 4080
);

-- The order of a page: newest first, then the greater id.
CREATE INDEX stacks_page ON stackmgr.stacks (manager_id, created_at DESC, stack_id DESC);

-- As if each manager had 20 stacks. With the true figure of a fleet of about one each, either index seems to find a
-- single row, and the planner would look for one stack among all entries of its manager in stacks_page.
ALTER TABLE stackmgr.stacks ALTER COLUMN manager_id SET (n_distinct = -0.05);

COMMENT ON TABLE stackmgr.stacks IS
    'The current configuration of each stack. No index covers a column that an update changes.';
COMMENT ON COLUMN stackmgr.stacks.manager_id IS 'Owner.';
COMMENT ON COLUMN stackmgr.stacks.stack_id IS 'Id in the API; never changes.';
COMMENT ON COLUMN stackmgr.stacks.revision_id IS 'Current revision: current_revision_id and ETag of the API.';
COMMENT ON COLUMN stackmgr.stacks.revision_number IS 'Number of the current revision, from 1 without gaps.';
COMMENT ON COLUMN stackmgr.stacks.name IS 'Current name.';
COMMENT ON COLUMN stackmgr.stacks.allocation IS 'Current allocation.';
COMMENT ON COLUMN stackmgr.stacks.preset IS 'Current preset.';
COMMENT ON COLUMN stackmgr.stacks.created_at IS 'Time of the creation; orders the list.';

-- The rights of the service leave out created_at of each table: only the server's clock sets it.
GRANT SELECT ON stackmgr.stacks TO stackmgr_app, stackmgr_reader;
GRANT INSERT (manager_id, stack_id, revision_id, revision_number, name, allocation, preset)
    ON stackmgr.stacks TO stackmgr_app;
GRANT UPDATE (revision_id, revision_number, name, allocation, preset) ON stackmgr.stacks TO stackmgr_app;

CREATE TABLE stackmgr.stack_revisions (
    manager_id       uuid                 NOT NULL,
    stack_id         uuid                 NOT NULL,
    revision_number  integer              NOT NULL,
    revision_id      uuid                 NOT NULL,
    name             stackmgr.stack_name  NOT NULL,
    allocation       stackmgr.allocation  NOT NULL,
    preset           stackmgr.preset      NOT NULL,
    identity_id      text                 NOT NULL,
    request_id       text                 NOT NULL,
    created_at       timestamptz          NOT NULL DEFAULT now(),
    key_id           text,
    CONSTRAINT stack_revisions_pkey PRIMARY KEY (manager_id, stack_id, revision_number),
    CONSTRAINT stack_revisions_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id),
    CONSTRAINT stack_revisions_revision_number_is_positive CHECK (revision_number >= 1)
) WITH (
    -- Autovacuum freezes each million new rows once, soon after they were inserted. By its defaults it would visit the
    -- table each time that it has grown by 20 percent, freeze no row younger than 50 million transactions, and read and
    -- write all of it again at an age of 200 million: 61 MB of WAL for 200,000 revisions instead of none.
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_freeze_min_age = 0
);

-- For a search by request id or revision id of some days: a few pages, and no write of a request. Without autosummarize
-- a new range of pages is summarised at a vacuum only, which visits the table every million rows; until then a search
-- of the last hour would read every page since.
CREATE INDEX stack_revisions_created_at ON stackmgr.stack_revisions USING brin (created_at)
    WITH (autosummarize = on);

COMMENT ON TABLE stackmgr.stack_revisions IS
    'Append-only: every configuration a stack ever had, with the identity and the request that made it.';
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
-- Text, because a remote verifier has key ids of its own form.
COMMENT ON COLUMN stackmgr.stack_revisions.key_id IS
    'The verifier''s id of the API key that made the revision (api_keys.key_id for the database verifier); '
    'null where the verifier gives none.';

GRANT SELECT ON stackmgr.stack_revisions TO stackmgr_reader;
GRANT INSERT (
    manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id, key_id
) ON stackmgr.stack_revisions TO stackmgr_app;

CREATE TABLE stackmgr.creation_receipts (
    manager_id       uuid        NOT NULL,
    idempotency_key  text        NOT NULL COLLATE "C",
    input_digest     bytea       NOT NULL,
    stack_id         uuid        NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT creation_receipts_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id),
    CONSTRAINT creation_receipts_input_digest_is_sha256 CHECK (octet_length(input_digest) = 32)
) WITH (
    -- As for stack_revisions.
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_freeze_min_age = 0
);

-- Uncompressed, and set before the index is made: whether the index can hold a key then depends on its length alone.
ALTER TABLE stackmgr.creation_receipts ALTER COLUMN idempotency_key SET STORAGE EXTERNAL;
ALTER TABLE stackmgr.creation_receipts
    ADD CONSTRAINT creation_receipts_pkey PRIMARY KEY (manager_id, idempotency_key);

COMMENT ON TABLE stackmgr.creation_receipts IS
    'One row for each Idempotency-Key a manager has used up. Rows never expire.';
COMMENT ON COLUMN stackmgr.creation_receipts.manager_id IS 'Manager; keys of two managers do not collide.';
COMMENT ON COLUMN stackmgr.creation_receipts.idempotency_key IS 'Idempotency-Key, compared exactly.';
COMMENT ON COLUMN stackmgr.creation_receipts.input_digest IS
    'SHA-256 of the normalized input: equals that of the stack''s revision 1.';
COMMENT ON COLUMN stackmgr.creation_receipts.stack_id IS 'Stack that the key created.';
COMMENT ON COLUMN stackmgr.creation_receipts.created_at IS 'Time of the creation.';

GRANT SELECT ON stackmgr.creation_receipts TO stackmgr_app, stackmgr_reader;
GRANT INSERT (manager_id, idempotency_key, input_digest, stack_id) ON stackmgr.creation_receipts TO stackmgr_app;

-- Views for people ----------------------------------------------------------------------------------------------------

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
-- LIMIT keeps the planner from a join that reads every key; the text of a remote verifier is no UUID.
LEFT JOIN LATERAL (
    SELECT label
    FROM stackmgr.api_keys AS api_keys
    WHERE api_keys.key_id = CASE
        WHEN stack_revisions.key_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
            THEN stack_revisions.key_id::uuid
    END
    LIMIT 1
) AS api_keys ON true;

COMMENT ON VIEW stackmgr.current_stack IS
    'Each stack as it is now, with the account of its manager and the key and request of its last change.';
COMMENT ON COLUMN stackmgr.current_stack.external_id IS 'Account of the manager.';
COMMENT ON COLUMN stackmgr.current_stack.manager_id IS 'Manager; select by it, if it is known.';
COMMENT ON COLUMN stackmgr.current_stack.stack_id IS 'Stack.';
COMMENT ON COLUMN stackmgr.current_stack.name IS 'Current name.';
COMMENT ON COLUMN stackmgr.current_stack.allocation IS 'Current allocation.';
COMMENT ON COLUMN stackmgr.current_stack.tokens IS 'Items of the allocation, those of weight 0 included.';
COMMENT ON COLUMN stackmgr.current_stack.preset IS 'Current preset.';
COMMENT ON COLUMN stackmgr.current_stack.revision_number IS 'Number of the current revision.';
COMMENT ON COLUMN stackmgr.current_stack.revision_id IS 'Current revision.';
COMMENT ON COLUMN stackmgr.current_stack.created_at IS 'Time of the creation.';
COMMENT ON COLUMN stackmgr.current_stack.revised_at IS 'Time of the last change.';
COMMENT ON COLUMN stackmgr.current_stack.key_id IS 'Key of the last change, as in stack_revisions.key_id.';
COMMENT ON COLUMN stackmgr.current_stack.key_label IS 'Label of the key of the last change, where it is local.';
COMMENT ON COLUMN stackmgr.current_stack.request_id IS 'Request of the last change.';

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

COMMENT ON VIEW stackmgr.revision_diff IS
    'What each update changed: one row for each token whose weight changed, or one without a token. '
    'Select by manager_id and stack_id.';
COMMENT ON COLUMN stackmgr.revision_diff.manager_id IS 'Owner of the stack.';
COMMENT ON COLUMN stackmgr.revision_diff.stack_id IS 'Stack.';
COMMENT ON COLUMN stackmgr.revision_diff.revision_number IS 'Number of the update''s revision, from 2.';
COMMENT ON COLUMN stackmgr.revision_diff.revision_id IS 'Id of the update''s revision.';
COMMENT ON COLUMN stackmgr.revision_diff.created_at IS 'Time of the update.';
COMMENT ON COLUMN stackmgr.revision_diff.identity_id IS 'Verified identity that made the update.';
COMMENT ON COLUMN stackmgr.revision_diff.key_id IS 'Key of the update, as in stack_revisions.key_id.';
COMMENT ON COLUMN stackmgr.revision_diff.request_id IS 'Request of the update.';
COMMENT ON COLUMN stackmgr.revision_diff.name_before IS 'Former name; null if it did not change.';
COMMENT ON COLUMN stackmgr.revision_diff.name_after IS 'New name; null if it did not change.';
COMMENT ON COLUMN stackmgr.revision_diff.preset_before IS 'Former preset; null if it did not change.';
COMMENT ON COLUMN stackmgr.revision_diff.preset_after IS 'New preset; null if it did not change.';
COMMENT ON COLUMN stackmgr.revision_diff.token_address IS 'Token whose weight changed; null if none did.';
COMMENT ON COLUMN stackmgr.revision_diff.weight_bps_before IS 'Former weight; null if the token was absent.';
COMMENT ON COLUMN stackmgr.revision_diff.weight_bps_after IS 'New weight; null if the token is absent.';

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

COMMENT ON VIEW stackmgr.receipt_age IS 'Age of each creation receipt, without its key. Receipts never expire.';
COMMENT ON COLUMN stackmgr.receipt_age.external_id IS 'Account of the manager.';
COMMENT ON COLUMN stackmgr.receipt_age.manager_id IS 'Manager.';
COMMENT ON COLUMN stackmgr.receipt_age.stack_id IS 'Stack that the key created.';
COMMENT ON COLUMN stackmgr.receipt_age.created_at IS 'Time of the creation.';
COMMENT ON COLUMN stackmgr.receipt_age.age IS 'Time since the creation.';
COMMENT ON COLUMN stackmgr.receipt_age.idempotency_key_bytes IS 'Length of the key in bytes.';

GRANT SELECT ON stackmgr.current_stack, stackmgr.revision_diff, stackmgr.receipt_age TO stackmgr_reader;
