-- api_key_revoke: revoke a key at once; a key already revoked keeps its first time of revocation.
-- params:  key_id uuid
-- returns: one row (key_id, revoked_at); no row when there is no such key
-- index:   api_keys_key_id_key
-- locks:   the key's row
-- called by: operate.keys.revoke
UPDATE stackmgr.api_keys
SET revoked_at = coalesce(revoked_at, now())
WHERE key_id = %(key_id)s::uuid
RETURNING key_id::text, revoked_at;
