-- blockers: list the sessions that block others and the sessions that wait for them, those that wait for none first.
-- params:  none
-- returns: a row for each session; waits_for has the pids that it waits for, 0 for a prepared transaction
-- index:   none (statistics of the server)
-- locks:   none
-- called by: psql, as stackmgr_operator or another login that has pg_read_all_stats: others see no query
-- why:     SELECT pg_terminate_backend(PID), as a superuser, ends a session that waits for none.
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
WITH sessions AS MATERIALIZED (
    SELECT
        pid, pg_catalog.pg_blocking_pids(pid) AS waits_for, usename, application_name, state,
        clock_timestamp() - xact_start AS transaction_age, left(regexp_replace(query, '\s+', ' ', 'g'), 60) AS query
    FROM pg_catalog.pg_stat_activity
)
SELECT pid, waits_for, usename, application_name, state, transaction_age, query
FROM sessions
WHERE waits_for <> '{}'::integer[]
    OR pid IN (SELECT unnest(waits_for) FROM sessions)
ORDER BY cardinality(waits_for), transaction_age DESC, pid;
COMMIT;
