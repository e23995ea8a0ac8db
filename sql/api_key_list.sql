-- api_key_list: list issued keys, oldest first, without their digests.
-- params:  external_id uuid or null
-- returns: many (key_id, external_id, label, last_four, created_at, expires_at or null, revoked_at or null,
--          last_used_at or null, quota_limit or null, quota_seconds or null, successor_id or null, state)
-- index:   none (the whole table, for an operator; api_keys_external_id for one account)
-- locks:   none
-- called by: operate.issued_keys.list_all
-- why:     planned with the value of its parameter: null costs nothing.
SELECT
    key_id::text,
    external_id::text,
    label,
    last_four,
    created_at,
    expires_at,
    revoked_at,
    last_used_at,
    quota_limit,
    quota_seconds,
    successor_id::text,
    stackmgr.api_key_state(revoked_at, expires_at) AS state
FROM stackmgr.api_keys AS api_keys
WHERE %(external_id)s::uuid IS NULL OR external_id = %(external_id)s::uuid
ORDER BY api_keys.created_at, api_keys.key_id;
