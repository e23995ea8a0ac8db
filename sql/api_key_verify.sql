-- api_key_verify: return the state and the identity of a key, and its manager if that is bound.
-- params:  key_digest bytea
-- returns: one row (state, external_id, identity_id, key_id, manager_id or null, quota_id or null,
--          quota_seconds or null, used_this_hour) with the state valid, revoked or expired; no row for an
--          unknown key
-- index:   api_keys_key_digest_hash, managers_external_id_key or managers_identity_id_key
-- locks:   none
-- called by: access.verifiers.database.DatabaseVerifier.verify
-- why:     the subquery saves every later request of a manager a second statement. It returns a manager only if
--          both ids of the binding agree; manager_find reports a conflict. The kept plan of a
--          join, made when there was one manager, would read all managers.
SELECT
    stackmgr.api_key_state(api_keys.revoked_at, api_keys.expires_at) AS state,
    api_keys.external_id::text,
    api_keys.identity_id,
    api_keys.key_id::text,
    (
        SELECT manager_id::text
        FROM stackmgr.managers AS managers
        WHERE managers.external_id = api_keys.external_id
            AND managers.identity_id = api_keys.identity_id
    ) AS manager_id,
    api_keys.quota_id::text,
    api_keys.quota_seconds,
    coalesce(api_keys.last_used_at >= date_trunc('hour', now(), 'UTC'), false) AS used_this_hour
FROM stackmgr.api_keys AS api_keys
WHERE api_keys.key_digest = %(key_digest)s::bytea;
