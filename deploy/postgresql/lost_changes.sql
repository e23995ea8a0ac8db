-- Print who was rotated, revoked, erased and held here, as commands, for "After any restore" in RUNBOOK.md.
\set ON_ERROR_STOP on
SELECT command FROM (
    SELECT coalesce(revoked_at, expires_at), 'stackmgr keys rotate ' || key_id FROM stackmgr.api_keys WHERE successor_id IS NOT NULL
    UNION ALL
    SELECT coalesce(revoked_at, expires_at), 'stackmgr keys revoke ' || key_id
    FROM stackmgr.api_keys WHERE revoked_at IS NOT NULL OR expires_at <= now()
    UNION ALL
    SELECT begun_at, format('stackmgr managers erase %s --confirm %s', manager_id, external_id) FROM stackmgr.manager_erasures
    UNION ALL
    SELECT held_at, format('stackmgr managers hold %s --reason ''%s''', manager_id, replace(reason, '''', '''\'''''))
    FROM stackmgr.manager_holds
    UNION ALL
    SELECT released_at, 'stackmgr managers release ' || manager_id FROM stackmgr.manager_holds WHERE released_at IS NOT NULL
) AS changes (changed_at, command)
ORDER BY changed_at, command DESC;
