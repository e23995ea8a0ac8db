-- api_key_quota_spend: take one of a quota's slots that was not taken in the last so many seconds.
-- params:  quota_id uuid, quota_seconds integer
-- returns: one row (is_granted, seconds or null): when none was granted, after how long one will be
-- index:   api_key_quota_slots_pkey
-- locks:   FOR NO KEY UPDATE on the slot; a slot that another request is taking is passed over, not awaited
-- called by: verifiers.database.DatabaseVerifier.verify
-- why:     a slot that was taken since the snapshot is read again under its lock and found taken, so that
--          two requests never share one. Nobody waits: requests of one key do not form a line. A slot that
--          the snapshot shows free though none could be had is being taken at this moment.
WITH free AS MATERIALIZED (
    SELECT quota_id, slot
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = %(quota_id)s::uuid
        AND granted_at <= now() - make_interval(secs => %(quota_seconds)s::integer)
    ORDER BY slot
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
granted AS (
    UPDATE stackmgr.api_key_quota_slots AS slots
    SET granted_at = now()
    FROM free
    WHERE slots.quota_id = free.quota_id
        AND slots.slot = free.slot
    RETURNING slots.slot
)
SELECT
    EXISTS (SELECT FROM granted) AS is_granted,
    CASE WHEN NOT EXISTS (SELECT FROM granted) THEN (
        SELECT coalesce(
            ceil(extract(
                epoch FROM min(granted_at) + make_interval(secs => %(quota_seconds)s::integer) - now()
            )),
            %(quota_seconds)s::integer
        )::integer
        FROM stackmgr.api_key_quota_slots
        WHERE quota_id = %(quota_id)s::uuid
            AND granted_at > now() - make_interval(secs => %(quota_seconds)s::integer)
    ) END AS seconds;
