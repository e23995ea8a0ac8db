-- migration_blockers: list sessions that hold locks on the tables of the schema, or that of migrations, for some time.
-- params:  none
-- returns: up to 3 rows (blocker), oldest first
-- index:   none (system views)
-- locks:   none
-- called by: operate.migrations.apply
-- why:     a migration that waits for a lock waits for one of these. Without pg_read_all_stats a login sees
--          only its own roles' transactions here. Any login may take the advisory lock of migrations.
SELECT
    concat(
        'pid ', activity.pid, ' (',
        concat_ws(' ', activity.usename, nullif(activity.application_name, '')), ', ', activity.state, ', ',
        round(extract(epoch FROM clock_timestamp() - begun.at)), ' s old: ',
        left(regexp_replace(activity.query, '\s+', ' ', 'g'), 120), ')'
    ) AS blocker
FROM pg_catalog.pg_stat_activity AS activity
CROSS JOIN LATERAL (SELECT coalesce(activity.xact_start, activity.state_change)) AS begun (at)
WHERE activity.pid <> pg_backend_pid()
    AND begun.at < clock_timestamp() - interval '0.2 s'
    AND EXISTS (
        SELECT FROM pg_catalog.pg_locks AS locks
        LEFT JOIN pg_catalog.pg_class AS class ON class.oid = locks.relation
        WHERE locks.pid = activity.pid
            AND locks.granted
            AND locks.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
            AND (
                class.relnamespace = to_regnamespace('stackmgr')
                OR (locks.locktype = 'advisory' AND locks.classid = 0 AND locks.objid = 4663001)
            )
    )
ORDER BY begun.at
LIMIT 3;
