-- api_key_find: return an issued key by its id, without its digest.
-- params:  key_id uuid
-- returns: at most one row (key_id, external_id, label, last_four, created_at, expires_at or null,
--          revoked_at or null, last_used_at or null, quota_limit or null, quota_seconds or null,
--          successor_id or null, state)
-- index:   api_keys_key_id_key
-- locks:   none
-- called by: operate.issued_keys.find
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
FROM stackmgr.api_keys
WHERE key_id = %(key_id)s::uuid;
