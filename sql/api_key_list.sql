-- api_key_list: list issued keys, oldest first, without their digests.
-- params:  external_id uuid or null, key_id uuid or null
-- returns: many (key_id, external_id, state, last_four, created_at, expires_at or null, revoked_at or null,
--          last_used_hour or null, quota or null, successor_id or null, label)
-- index:   none (every row, for an operator; api_keys_external_id or api_keys_key_id_key for one)
-- locks:   none
-- called by: operate.keys.find, operate.keys._list
-- why:     planned with the values of its parameters: null costs nothing.
SELECT
    key_id::text,
    external_id::text,
    stackmgr.api_key_state(revoked_at, expires_at) AS state,
    last_four,
    created_at,
    expires_at,
    revoked_at,
    last_used_at AS last_used_hour,
    quota_limit || '/' || quota_seconds AS quota,
    successor_id::text,
    label
FROM stackmgr.api_keys AS api_keys
WHERE (%(external_id)s::uuid IS NULL OR external_id = %(external_id)s::uuid)
    AND (%(key_id)s::uuid IS NULL OR key_id = %(key_id)s::uuid)
ORDER BY api_keys.created_at, api_keys.key_id;
