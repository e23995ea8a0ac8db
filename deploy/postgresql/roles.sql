-- Run once by a DBA, as a superuser, before the first `stackmgr migrate`. Running it again changes nothing.
--
--     psql -X -d postgres -f roles.sql
--     psql -X -d postgres -v database=stackmgr_staging -f roles.sql     (instead of stackmgr)
--
-- Three roles own, use and read the schema; they cannot log in. Two logins may assume them. Set their passwords
-- afterwards with `\password LOGIN` in psql, which neither sends nor logs a password in plain text:
--
--     stackmgr_operator   runs the operator's commands; may assume each of the three roles
--     stackmgr_service    the service; may read and insert, and update the configuration of stacks and one column
--                         each of api_keys, api_key_quota_slots and api_key_quota_queues
--
-- For read-only access, as support needs it, a login of its own, which cannot hold up vacuum or a migration for long:
--
--     CREATE ROLE analyst LOGIN IN ROLE stackmgr_reader;
--     ALTER ROLE analyst SET statement_timeout = '15min';
--     ALTER ROLE analyst SET idle_in_transaction_session_timeout = '5min';
--
-- A login that may connect can store large objects. To forbid that, as a superuser in the database; a dump repeats it,
-- and only a superuser can restore that:
--
--     REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC;

\set ON_ERROR_STOP on
\if :{?database}
\else
    \set database stackmgr
\endif

-- The first migration creates them too, but only as a login with CREATEROLE.
SELECT format('CREATE ROLE %I NOLOGIN', wanted)
FROM (VALUES ('stackmgr_owner'), ('stackmgr_app'), ('stackmgr_reader')) AS roles (wanted)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted)
\gexec

SELECT format('CREATE ROLE %I LOGIN', wanted)
FROM (VALUES ('stackmgr_operator'), ('stackmgr_service')) AS logins (wanted)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted)
\gexec

GRANT stackmgr_owner, stackmgr_app, stackmgr_reader TO stackmgr_operator;
GRANT stackmgr_app TO stackmgr_service;
-- `stackmgr migrate` reports the transactions that block it.
GRANT pg_read_all_stats TO stackmgr_operator;

-- UTF8 is required. Locale C keeps indexes independent of the operating system's collations.
SELECT format('CREATE DATABASE %I ENCODING ''UTF8'' LOCALE ''C'' TEMPLATE template0', :'database')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = :'database')
\gexec

REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO stackmgr_operator, stackmgr_service, stackmgr_reader;
-- For the schema, which the first migration creates.
GRANT CREATE ON DATABASE :"database" TO stackmgr_operator;

-- Keep client data out of the server log: parameters, and the DETAIL of errors, which may contain an
-- Idempotency-Key. auto_explain and pgaudit, if they are loaded, have settings of their own.
ALTER DATABASE :"database" SET log_parameter_max_length = 0;
ALTER DATABASE :"database" SET log_parameter_max_length_on_error = 0;
ALTER DATABASE :"database" SET log_error_verbosity = terse;
ALTER DATABASE :"database" SET pgaudit.log_parameter = off;
SELECT format('ALTER DATABASE %I SET auto_explain.log_parameter_max_length = 0', :'database')
WHERE current_setting('server_version_num')::integer >= 160000
\gexec

-- Recommended server settings. Each row returned is a setting to change in postgresql.conf, unless there is a
-- reason not to. The service does not start without the first two and sets the third itself.
SELECT name, setting AS "is", wanted
FROM (
    VALUES
        ('fsync', 'on'),
        ('full_page_writes', 'on'),
        ('synchronous_commit', 'on'),
        ('data_checksums', 'on'),
        ('ssl', 'on'),
        ('password_encryption', 'scram-sha-256'),
        ('archive_mode', 'on')
) AS advice (name, wanted)
JOIN pg_catalog.pg_settings USING (name)
WHERE setting <> wanted
ORDER BY name;
