-- api_key_use_record: record the hour of a key's last use, unless it is recorded already.
-- params:  key_digest bytea
-- returns: one row (key_id) when it was written; no row otherwise
-- index:   api_keys_key_digest_hash
-- locks:   FOR NO KEY UPDATE on the key's row; verifications do not wait for it
-- called by: access.verifiers.database.LastUse.write
-- why:     run by a background thread, at most once an hour for each key in use.
UPDATE stackmgr.api_keys
SET last_used_at = date_trunc('hour', now(), 'UTC')
WHERE key_digest = %(key_digest)s::bytea
    AND (last_used_at IS NULL OR last_used_at < date_trunc('hour', now(), 'UTC'))
RETURNING key_id::text;
