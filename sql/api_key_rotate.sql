-- api_key_rotate: issue the successor of a key, and expire the key at once or after an overlap.
-- params:  key_id uuid, overlap_seconds integer, successor_digest bytea, successor_id uuid, last_four text,
--          expires_at timestamptz or null
-- returns: one row (successor_id, successor_expires_at or null, predecessor_expires_at); no row when there is no such
--          key, or it is revoked, expired or rotated already
-- index:   api_keys_key_id_key, api_keys_key_digest_hash
-- locks:   FOR NO KEY UPDATE on the key's row
-- called by: operate.keys.rotate
-- why:     the successor inherits label, quota and expiry, the latter as it was before this statement. It
--          shares the slots of the quota, so that an overlap does not double the quota.
WITH predecessor AS (
    SELECT key_digest, external_id, identity_id, label, expires_at, quota_id, quota_limit, quota_seconds
    FROM stackmgr.api_keys
    WHERE key_id = %(key_id)s::uuid
        AND stackmgr.api_key_state(revoked_at, expires_at) = 'valid'
        AND successor_id IS NULL
    FOR NO KEY UPDATE
),
successor AS (
    INSERT INTO stackmgr.api_keys (
        key_digest, key_id, external_id, identity_id, label, last_four, expires_at,
        quota_id, quota_limit, quota_seconds
    )
    SELECT
        %(successor_digest)s::bytea,
        %(successor_id)s::uuid,
        external_id,
        identity_id,
        label,
        %(last_four)s::text,
        coalesce(%(expires_at)s::timestamptz, expires_at),
        quota_id,
        quota_limit,
        quota_seconds
    FROM predecessor
    RETURNING key_id, expires_at
),
ended AS (
    UPDATE stackmgr.api_keys AS api_keys
    SET
        successor_id = %(successor_id)s::uuid,
        expires_at = least(
            predecessor.expires_at,
            now() + make_interval(secs => %(overlap_seconds)s::integer)
        )
    FROM predecessor
    WHERE api_keys.key_digest = predecessor.key_digest
    RETURNING api_keys.expires_at
)
SELECT
    successor.key_id::text AS successor_id,
    successor.expires_at AS successor_expires_at,
    ended.expires_at AS predecessor_expires_at
FROM successor
CROSS JOIN ended;
