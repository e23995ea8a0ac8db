-- 0002_tables: managers, their keys, and their stacks.
--
-- Every table that belongs to a manager begins its primary key and its foreign keys with manager_id:
-- a tenant is a key prefix.  `stacks` holds the present, `stack_revisions` the append-only past;
-- a read never needs the past, and an update re-reads the present under its row lock.

SET LOCAL ROLE stackmgr_owner;

-- What a configuration may hold is said once, by these types: a value is checked when it becomes one of
-- them, and not again when an update keeps it or a revision copies it.  The functions may be called by
-- whoever writes; nobody else needs them.

-- What Python's str.isspace() counts as white space, spelled out, so that the rule "a name holds at
-- least one character that is not white space" means the same here as in the service, whatever the
-- locale of the database.
CREATE FUNCTION stackmgr.name_is_blank(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN btrim(
    name,
    U&'\0009\000A\000B\000C\000D\001C\001D\001E\001F\0020\0085\00A0\1680'
    '\2000\2001\2002\2003\2004\2005\2006\2007\2008\2009\200A\2028\2029\202F\205F\3000'
) = '';

CREATE DOMAIN stackmgr.stack_name AS text
    CONSTRAINT stack_name_is_not_blank CHECK (NOT stackmgr.name_is_blank(VALUE));

-- 1 to 30 items; addresses lowercase, ascending and therefore unique; weights 0..10000 that total
-- 10000; and the very spelling that answers carry, because the text goes out as it was stored.
--
-- The pattern leaves to the rules of JSON what they settle already: that single commas part the items, and
-- that no number begins with a zero it does not need.  It leaves the length of an address to length(),
-- because a repetition of forty costs forty states of the matcher.
CREATE FUNCTION stackmgr.allocation_is_normalised(allocation json) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
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

CREATE DOMAIN stackmgr.allocation AS json
    CONSTRAINT allocation_is_normalised CHECK (stackmgr.allocation_is_normalised(VALUE));

CREATE DOMAIN stackmgr.preset AS text
    CONSTRAINT preset_is_known CHECK (VALUE IN ('hourly', 'daily', 'weekly', 'monthly'));

GRANT EXECUTE ON FUNCTION stackmgr.name_is_blank, stackmgr.allocation_is_normalised TO stackmgr_app;

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

CREATE TABLE stackmgr.api_keys (
    key_digest   bytea       NOT NULL,
    key_id       uuid        NOT NULL,
    external_id  uuid        NOT NULL,
    identity_id  text        NOT NULL COLLATE "C",
    label        text        NOT NULL DEFAULT '',
    last_four    text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_digest),
    CONSTRAINT api_keys_key_id_key UNIQUE (key_id),
    CONSTRAINT api_keys_key_digest_is_sha256 CHECK (octet_length(key_digest) = 32),
    CONSTRAINT api_keys_last_four_is_short CHECK (length(last_four) = 4)
);
COMMENT ON TABLE stackmgr.api_keys IS
    'SHA-256 of each issued key, never the key. Not a tenant table: a key is known before its manager.';

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
    CONSTRAINT stacks_manager_id_fkey FOREIGN KEY (manager_id) REFERENCES stackmgr.managers (manager_id),
    CONSTRAINT stacks_revision_number_is_positive CHECK (revision_number >= 1)
) WITH (
    -- Room on each page for a second version of a row of any size from 1 token to 30: updates stay HOT.
    fillfactor = 75,
    -- A row of 30 tokens has 2.5 kB; compressed, a page of such rows would take twice as long to read.
    toast_tuple_target = 4080
);
COMMENT ON TABLE stackmgr.stacks IS
    'The current configuration of each stack. No index covers a column that an update changes.';

-- The order of a page: newest first, then the greater id.
CREATE INDEX stacks_page ON stackmgr.stacks (manager_id, created_at DESC, stack_id DESC);

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
    CONSTRAINT stack_revisions_pkey PRIMARY KEY (manager_id, stack_id, revision_number),
    CONSTRAINT stack_revisions_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id),
    CONSTRAINT stack_revisions_revision_number_is_positive CHECK (revision_number >= 1)
);
COMMENT ON TABLE stackmgr.stack_revisions IS
    'Append-only: every configuration a stack ever had, with the identity and the request that made it.';

CREATE TABLE stackmgr.creation_receipts (
    manager_id       uuid        NOT NULL,
    idempotency_key  text        NOT NULL COLLATE "C",
    input_digest     bytea       NOT NULL,
    stack_id         uuid        NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT creation_receipts_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id),
    CONSTRAINT creation_receipts_input_digest_is_sha256 CHECK (octet_length(input_digest) = 32)
);
COMMENT ON TABLE stackmgr.creation_receipts IS
    'One row for each Idempotency-Key a manager has used up. Rows never expire.';

-- Before the index: uncompressed, the longest key the index can hold is a matter of its length alone,
-- not of how well it happens to compress.
ALTER TABLE stackmgr.creation_receipts ALTER COLUMN idempotency_key SET STORAGE EXTERNAL;
ALTER TABLE stackmgr.creation_receipts
    ADD CONSTRAINT creation_receipts_pkey PRIMARY KEY (manager_id, idempotency_key);

GRANT SELECT, INSERT ON stackmgr.managers TO stackmgr_app;
GRANT SELECT ON stackmgr.api_keys TO stackmgr_app;
GRANT SELECT, INSERT ON stackmgr.stacks TO stackmgr_app;
GRANT UPDATE (revision_id, revision_number, name, allocation, preset) ON stackmgr.stacks TO stackmgr_app;
GRANT INSERT ON stackmgr.stack_revisions TO stackmgr_app;
GRANT SELECT, INSERT ON stackmgr.creation_receipts TO stackmgr_app;
