-- api_key_verify: whom a key belongs to, and that manager's record where the binding already stands.
-- params:  key_digest bytea
-- returns: one row (external_id, identity_id, manager_id or null, quota_id or null, quota_seconds or null,
--          used_this_hour); no row for an unknown, revoked or expired key
-- index:   api_keys_pkey, managers_external_id_key or managers_identity_id_key
-- locks:   none
-- called by: verifiers.database.DatabaseVerifier.verify
-- why:     the join spares every later request of a manager a second statement; it yields a manager only
--          where both halves of the binding agree, and leaves a disagreement to manager_find.
SELECT
    api_keys.external_id::text,
    api_keys.identity_id,
    managers.manager_id::text,
    api_keys.quota_id::text,
    api_keys.quota_seconds,
    coalesce(api_keys.last_used_at >= date_trunc('hour', now(), 'UTC'), false) AS used_this_hour
FROM stackmgr.api_keys AS api_keys
LEFT JOIN stackmgr.managers AS managers
    ON managers.external_id = api_keys.external_id
    AND managers.identity_id = api_keys.identity_id
WHERE api_keys.key_digest = %(key_digest)s::bytea
    AND api_keys.revoked_at IS NULL
    AND (api_keys.expires_at IS NULL OR api_keys.expires_at > now());
