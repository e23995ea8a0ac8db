-- The settings of the service's login in its database, for service hosts that reach it through a pooler: a pooler
-- drops the start-up options with which the service makes them otherwise. Run as a superuser, after roles.sql:
--
--     psql -X -d postgres -f pooler.sql
--     psql -X -d postgres -v database=stackmgr_staging -f pooler.sql     (another name than stackmgr)
--
-- They hold for server connections made afterwards: then `RECONNECT` in PgBouncer's console. The service reads
-- them back when it connects to the pooler, and serves nothing without them. stackmgr/database/conninfo.py says why it needs
-- each. Shorten the two timeouts together with STACKMGR_DATABASE_TIMEOUT (0.3 and 0.6 of it, 5 s by default).

\set ON_ERROR_STOP on
\if :{?database}
\else
    \set database stackmgr
\endif

ALTER ROLE stackmgr_service IN DATABASE :"database" SET lock_timeout = '1500ms';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET statement_timeout = '3000ms';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET search_path = pg_catalog;
ALTER ROLE stackmgr_service IN DATABASE :"database" SET standard_conforming_strings = 'on';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET transform_null_equals = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET row_security = 'on';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET default_transaction_isolation = 'read committed';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET default_transaction_deferrable = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET DateStyle = ISO,YMD;
ALTER ROLE stackmgr_service IN DATABASE :"database" SET IntervalStyle = 'postgres';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET TimeZone = 'UTC';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET bytea_output = 'hex';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET extra_float_digits = '1';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET quote_all_identifiers = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET synchronous_commit = 'on';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET client_min_messages = 'warning';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET exit_on_error = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET client_connection_check_interval = '500ms';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET plan_cache_mode = 'force_generic_plan';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET enable_seqscan = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET enable_sort = 'off';
ALTER ROLE stackmgr_service IN DATABASE :"database" SET jit = 'off';
