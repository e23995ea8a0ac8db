-- connections: count the sessions of each login and program by their state, the most first.
-- params:  none
-- returns: a row for each login, program and state: sessions, how long ago the longest entered that state, and the age
--          of the oldest transaction; used_of has all client sessions and max_connections
-- index:   none (statistics of the server)
-- locks:   none
-- called by: psql, as stackmgr_operator or another login that has pg_read_all_stats; as a superuser, for whom
--          connections are reserved, if every other login is rejected
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SELECT
    usename, application_name, state, count(*) AS sessions, max(greatest(clock_timestamp() - state_change, interval '0')) AS longest,
    max(clock_timestamp() - xact_start) AS oldest_transaction,
    sum(count(*)) OVER () || ' of ' || current_setting('max_connections') AS used_of
FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend'
GROUP BY usename, application_name, state
ORDER BY sessions DESC, usename, application_name, state;
COMMIT;
