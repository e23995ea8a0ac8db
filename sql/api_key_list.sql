-- api_key_list: list issued keys, without their digests.
-- params:  key_id uuid or null, external_id uuid or null
-- returns: many (key_id, external_id, label, last_four, created_at, expires_at or null, revoked_at or null,
--          last_used_at or null, quota_limit or null, quota_seconds or null, successor_id or null)
-- index:   none (the whole table, for an operator)
-- locks:   none
-- called by: access.api_keys.list_all, access.api_keys.find
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
    successor_id::text
FROM stackmgr.api_keys AS api_keys
WHERE (%(key_id)s::uuid IS NULL OR key_id = %(key_id)s::uuid)
    AND (%(external_id)s::uuid IS NULL OR external_id = %(external_id)s::uuid)
ORDER BY api_keys.created_at, api_keys.key_id;
