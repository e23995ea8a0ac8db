-- api_key_quota_consume: take one slot of a quota that was not taken within its period.
-- params:  quota_id uuid, quota_seconds integer
-- returns: one row (is_granted, seconds or null): if none was granted, the seconds until one will be
-- index:   api_key_quota_slots_pkey, api_key_quota_queues_pkey
-- locks:   FOR NO KEY UPDATE on the slot; a slot that another request is taking is skipped at first
-- called by: access.verifiers.database.DatabaseVerifier.verify
-- why:     a slot that was taken since the snapshot is read again under its lock, so that no two requests
--          share it. If no slot could be locked although the snapshot shows one free, a concurrent request is
--          taking it. A slot with a queue may have another grant: only for such a slot a request waits.
--          The updates compare with a subquery, not a join, so that no kept plan reads other quotas.
--          The lock of the slot guards its queue, which is updated as that lock found it.
--          A slot dated more than a minute ahead was taken before the clock was set back. It counts as free,
--          so a quota may be exceeded once after such a step, by its own size. A minute, because now() is
--          the start of a transaction, and one that started later may have committed before this snapshot.
WITH free AS MATERIALIZED (
    SELECT slot
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = %(quota_id)s::uuid
        AND (
            granted_at <= now() - make_interval(secs => %(quota_seconds)s::integer)
            OR granted_at > now() + make_interval(mins => 1)
        )
    ORDER BY slot
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
seen AS MATERIALIZED (
    SELECT min(granted_at) FILTER (WHERE NOT is_free) AS oldest, bool_or(is_free) AS is_any_free
    FROM (
        SELECT
            granted_at,
            granted_at <= now() - make_interval(secs => %(quota_seconds)s::integer)
            OR granted_at > now() + make_interval(mins => 1) AS is_free
        FROM stackmgr.api_key_quota_slots
        WHERE quota_id = %(quota_id)s::uuid
    ) AS slots
    WHERE NOT EXISTS (SELECT FROM free)
),
awaited AS MATERIALIZED (
    SELECT slot
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = %(quota_id)s::uuid
        AND (
            granted_at <= now() - make_interval(secs => %(quota_seconds)s::integer)
            OR granted_at > now() + make_interval(mins => 1)
        )
        AND (SELECT is_any_free FROM seen)
        AND EXISTS (
            SELECT FROM stackmgr.api_key_quota_queues
            WHERE quota_id = %(quota_id)s::uuid
                AND slot = 1
        )
    ORDER BY slot
    LIMIT 1
    FOR NO KEY UPDATE
),
locked AS MATERIALIZED (
    SELECT slot FROM free
    UNION ALL
    SELECT slot FROM awaited
),
queued AS (
    UPDATE stackmgr.api_key_quota_queues AS queues
    SET granted_at = queues.granted_at[2:] || now()
    WHERE queues.quota_id = %(quota_id)s::uuid
        AND queues.slot = (SELECT slot FROM locked)
    RETURNING queues.granted_at[1] AS oldest
),
granted AS (
    UPDATE stackmgr.api_key_quota_slots AS slots
    SET granted_at = coalesce((SELECT oldest FROM queued), now())
    WHERE slots.quota_id = %(quota_id)s::uuid
        AND slots.slot = (SELECT slot FROM locked)
    RETURNING slots.slot
)
SELECT
    EXISTS (SELECT FROM granted) AS is_granted,
    CASE WHEN NOT EXISTS (SELECT FROM granted) THEN (
        SELECT coalesce(
            ceil(extract(epoch FROM oldest + make_interval(secs => %(quota_seconds)s::integer) - now())),
            %(quota_seconds)s::integer
        )::integer
        FROM seen
    ) END AS seconds;
