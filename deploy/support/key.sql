-- key: show why requests with an API key get 401 or 429: the state of each issued key that fits.
-- params:  one or more of key (KEY_ID, as in the line of a rejected request), last_four (its last four characters),
--          manager (external id or manager id)
-- returns: a row for each key, the newest first; no row if the key is unknown: never issued, or erased with its manager.
--          valid_again: when the next request of its quota is free; last_used_hour is null for a key never used
-- index:   api_keys_key_id_key, api_keys_external_id, api_key_quota_slots_pkey; with last_four alone every key is read
-- locks:   none
-- called by: psql, as a login that may assume stackmgr_reader
-- why:     neither the key nor its digest is a parameter: both would be in the server's log.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse
\if :{?key} \elif :{?last_four} \elif :{?manager} \else
DO $$ BEGIN RAISE EXCEPTION 'which key? psql -v key=KEY_ID, last_four= or manager='; END $$;
\endif

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_reader;
SET LOCAL TimeZone = 'UTC';

\x on
SELECT
    keys.key_id, keys.external_id, keys.label, keys.last_four,
    CASE
        WHEN stackmgr.api_key_state(keys.revoked_at, keys.expires_at) = 'valid' AND quota.valid_again > now()
            THEN 'quota exhausted'
        ELSE stackmgr.api_key_state(keys.revoked_at, keys.expires_at)
    END AS state,
    keys.created_at, keys.expires_at, keys.revoked_at, keys.last_used_at AS last_used_hour,
    keys.quota_limit || ' in ' || keys.quota_seconds || ' s' AS quota,
    CASE WHEN quota.valid_again > now() THEN quota.valid_again END AS valid_again, keys.successor_id
FROM stackmgr.api_keys AS keys
CROSS JOIN LATERAL (
    SELECT
        min(CASE WHEN granted_at > now() + interval '1 minute' THEN '-infinity' ELSE granted_at END)
        + make_interval(secs => keys.quota_seconds) AS valid_again
    FROM stackmgr.api_key_quota_slots
    WHERE quota_id = keys.quota_id
) AS quota
WHERE true
\if :{?key}
    AND keys.key_id = :'key'::uuid
\endif
\if :{?last_four}
    AND keys.last_four = :'last_four'
\endif
\if :{?manager}
    AND keys.external_id IN (
        SELECT :'manager'::uuid
        UNION ALL
        SELECT external_id FROM stackmgr.managers WHERE manager_id = :'manager'::uuid
    )
\endif
ORDER BY keys.created_at DESC, keys.key_id;
COMMIT;
