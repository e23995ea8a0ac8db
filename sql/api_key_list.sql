-- api_key_list: list issued keys, oldest first, without their digests, from one of them on.
-- params:  external_id uuid or null, first uuid or null, row_limit integer or null
-- returns: many (key_id, external_id, label, last_four, created_at, expires_at or null, revoked_at or null,
--          last_used_at or null, quota_limit or null, quota_seconds or null, successor_id or null, state); none if
--          there is no key with the id first
-- index:   none (the whole table, for an operator; api_keys_external_id for one account)
-- locks:   none
-- called by: operate.issued_keys.list_all
-- why:     planned with the values of its parameters, those that are null cost nothing.
SELECT
    key_id::text,
    external_id::text,
    label,
    last_four,
    created_at,
    expires_at,
    revoked_at,
    last_used_at,
    quota_limit,
    quota_seconds,
    successor_id::text,
    stackmgr.api_key_state(revoked_at, expires_at) AS state
FROM stackmgr.api_keys AS api_keys
WHERE (%(external_id)s::uuid IS NULL OR external_id = %(external_id)s::uuid)
    AND (
        %(first)s::uuid IS NULL
        OR (created_at, key_id) >= (
            SELECT first_key.created_at, first_key.key_id
            FROM stackmgr.api_keys AS first_key
            WHERE first_key.key_id = %(first)s::uuid
        )
    )
ORDER BY api_keys.created_at, api_keys.key_id
LIMIT %(row_limit)s::integer;
