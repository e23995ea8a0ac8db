-- api_key_insert: insert an issued key, as its digest, and the slots of its quota if it has one.
-- params:  key_digest bytea, key_id uuid, external_id uuid, identity_id text, label text, last_four text,
--          expires_at timestamptz or null, quota_id uuid or null, quota_limit integer or null,
--          quota_seconds integer or null
-- returns: one row (key_id)
-- index:   none
-- locks:   none
-- called by: operate.keys.create
-- why:     a quota of more than 100 has 100 slots with a queue each, so that a request looks at no more.
WITH issued AS (
    INSERT INTO stackmgr.api_keys (
        key_digest, key_id, external_id, identity_id, label, last_four, expires_at,
        quota_id, quota_limit, quota_seconds
    )
    VALUES (
        %(key_digest)s::bytea,
        %(key_id)s::uuid,
        %(external_id)s::uuid,
        %(identity_id)s::text,
        %(label)s::text,
        %(last_four)s::text,
        %(expires_at)s::timestamptz,
        %(quota_id)s::uuid,
        %(quota_limit)s::integer,
        %(quota_seconds)s::integer
    )
    RETURNING key_id, quota_id, quota_limit
),
slots AS (
    INSERT INTO stackmgr.api_key_quota_slots (quota_id, slot)
    SELECT quota_id, generate_series(1, least(quota_limit, 100))
    FROM issued
    WHERE quota_id IS NOT NULL
),
queues AS (
    INSERT INTO stackmgr.api_key_quota_queues (quota_id, slot, granted_at)
    SELECT quota_id, slot, array_fill('epoch'::timestamptz, ARRAY[(quota_limit - slot) / 100 + 1])
    FROM issued
    CROSS JOIN generate_series(1, 100) AS slot
    WHERE quota_limit > 100
)
SELECT key_id::text
FROM issued;
