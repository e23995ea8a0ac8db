-- What a DBA runs once, as a superuser, before the first `stackmgr migrate`; running it again changes nothing.
--
--     psql -X -d postgres -f roles.sql
--     psql -X -d postgres -v database=stackmgr_staging -f roles.sql     (another name than stackmgr)
--
-- Two roles own and use the schema and cannot log in; two logins may assume them. Passwords are set
-- afterwards, each by `\password LOGIN` in psql, which sends and logs no password in clear:
--
--     stackmgr_operator   runs `stackmgr migrate` and `stackmgr keys ...`; may become the owner
--     stackmgr_service    the service; may read, insert, and update five columns of one table

\set ON_ERROR_STOP on
\if :{?database}
\else
    \set database stackmgr
\endif

-- The migrations would make these two as well, but only as a login that may create roles.
SELECT format('CREATE ROLE %I NOLOGIN', wanted)
FROM (VALUES ('stackmgr_owner'), ('stackmgr_app')) AS roles (wanted)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted)
\gexec

SELECT format('CREATE ROLE %I LOGIN', wanted)
FROM (VALUES ('stackmgr_operator'), ('stackmgr_service')) AS logins (wanted)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted)
\gexec

GRANT stackmgr_owner, stackmgr_app TO stackmgr_operator;
GRANT stackmgr_app TO stackmgr_service;

-- UTF8 is required. With the locale C no index depends on the collations of an operating system.
SELECT format('CREATE DATABASE %I ENCODING ''UTF8'' LOCALE ''C'' TEMPLATE template0', :'database')
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = :'database')
\gexec

REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO stackmgr_operator, stackmgr_service;
-- For the schema, which the first migration makes.
GRANT CREATE ON DATABASE :"database" TO stackmgr_operator;

-- Callers' data stay out of the server's log: neither parameters nor the DETAIL of an error, which may quote
-- an Idempotency-Key.
ALTER DATABASE :"database" SET log_parameter_max_length = 0;
ALTER DATABASE :"database" SET log_parameter_max_length_on_error = 0;
ALTER DATABASE :"database" SET log_error_verbosity = terse;

-- What the server itself should have; a row here is something to change in postgresql.conf, or to have a
-- reason for. The service refuses to start without the first two, and asks for the third by itself.
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
