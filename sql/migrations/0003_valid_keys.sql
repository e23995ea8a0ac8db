-- 0003_valid_keys: what makes an API key valid, and the guard with which each operation begins.
--
-- Both functions are inlined into the statements that use them. No table is locked.

SET LOCAL ROLE stackmgr_owner;

CREATE FUNCTION stackmgr.api_key_state(revoked_at timestamptz, expires_at timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN revoked_at IS NOT NULL THEN 'revoked'
    WHEN expires_at <= now() THEN 'expired'
    ELSE 'valid'
END;

-- One row, or none. The manager and the key are each found by a parameter, so that no kept plan joins tables. A key with
-- a quota is verified before, because a quota is used up by a statement of its own.
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

GRANT EXECUTE ON FUNCTION stackmgr.api_key_state TO stackmgr_app, stackmgr_reader;
GRANT EXECUTE ON FUNCTION stackmgr.caller TO stackmgr_app;
