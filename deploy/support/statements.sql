-- statements: list the service's statements by the share of the server's time that they took.
-- params:  none
-- returns: a row for each file of sql/ that has run since the statistics were reset, with its calls and times
-- index:   none (statistics of the server)
-- locks:   none
-- called by: psql, in the database that has the extension pg_stat_statements, as stackmgr_operator or another login
--          that has pg_read_all_stats: others see only their own statements
\set ON_ERROR_STOP on \set QUIET on \set VERBOSITY terse

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SELECT substring(query FROM '/\* (\w+) \*/') AS statement, sum(calls) AS calls,
       sum(total_exec_time) / sum(calls) AS mean_ms, max(max_exec_time) AS max_ms,
       100 * sum(total_exec_time) / sum(sum(total_exec_time)) OVER () AS percent_of_time
  FROM pg_stat_statements
 WHERE query ~ '/\* \w+ \*/'
 GROUP BY 1
 ORDER BY percent_of_time DESC;
COMMIT;
