-- api_key_quota_peek: return what api_key_quota_consume would, without taking a slot.
-- params:  quota_id uuid, quota_seconds integer
-- returns: one row (is_granted, seconds or null): if none would be granted, the seconds until one will be
-- index:   api_key_quota_slots_pkey
-- locks:   none
-- called by: access.verifiers.database.DatabaseVerifier.verify
-- why:     a slot dated more than a minute ahead is free, as in api_key_quota_consume.
WITH next AS (
    SELECT
        min(CASE WHEN granted_at > now() + make_interval(mins => 1) THEN '-infinity' ELSE granted_at END)
        + make_interval(secs => %(quota_seconds)s::integer) AS free_at
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = %(quota_id)s::uuid
)
SELECT
    free_at <= now() AS is_granted,
    CASE WHEN free_at > now() THEN ceil(extract(epoch FROM free_at - now()))::integer END AS seconds
FROM next;
