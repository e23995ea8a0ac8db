-- api_key_quota_look: what api_key_quota_spend would answer, without taking a slot.
-- params:  quota_id uuid, quota_seconds integer
-- returns: one row (is_granted, seconds or null): when none would be granted, after how long one will be
-- index:   api_key_quota_slots_pkey
-- locks:   none
-- called by: verifiers.database.DatabaseVerifier.verify
WITH next AS (
    SELECT min(granted_at) + make_interval(secs => %(quota_seconds)s::integer) AS free_at
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = %(quota_id)s::uuid
)
SELECT
    free_at <= now() AS is_granted,
    CASE WHEN free_at > now() THEN ceil(extract(epoch FROM free_at - now()))::integer END AS seconds
FROM next;
