-- migration_blockers: list transactions that hold locks on the tables of the schema and began some time ago.
-- params:  none
-- returns: up to 3 rows (pid, application_name, seconds, state, query), oldest first
-- index:   none (system views)
-- locks:   none
-- called by: operate.migrations.apply
-- why:     a migration that waits for a lock waits for one of these. Without pg_read_all_stats a login sees
--          only its own roles' transactions here.
SELECT
    activity.pid,
    activity.application_name,
    round(extract(epoch FROM clock_timestamp() - activity.xact_start))::integer AS seconds,
    activity.state,
    left(regexp_replace(activity.query, '\s+', ' ', 'g'), 120) AS query
FROM pg_catalog.pg_stat_activity AS activity
WHERE activity.pid <> pg_backend_pid()
    AND activity.xact_start < clock_timestamp() - interval '0.2 s'
    AND EXISTS (
        SELECT FROM pg_catalog.pg_locks AS locks
        JOIN pg_catalog.pg_class AS class ON class.oid = locks.relation
        WHERE locks.pid = activity.pid
            AND locks.granted
            AND locks.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
            AND class.relnamespace = to_regnamespace('stackmgr')
    )
ORDER BY activity.xact_start
LIMIT 3;
