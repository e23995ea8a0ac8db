-- server_facts: return what the service relies on in a server and in its own login.
-- params:  none
-- returns: one row (is_recent, is_utf8, fsync, full_page_writes, takes_writes,
--          checks_foreign_keys, is_encrypted, hides_parameters, clock, role_allowed, is_no_superuser, is_no_owner,
--          schema_exists, is_distributed)
-- index:   none (catalogs)
-- locks:   none
-- called by: operate.preflight.examine
-- why:     from PostgreSQL 16 on, only the SET option of a membership lets its holder assume the role. The
--          schema is searched in the catalog, which a login without rights to the schema may read.
--          A connection within one host needs no encryption; behind a pooler it is the pooler's. auto_explain and
--          pgaudit have settings of their own for the parameters of statements. deploy/citus.sql defers the check of
--          receipts, which somebody else may do without Citus.
SELECT
    current_setting('server_version_num')::integer >= 150000 AS is_recent,
    current_setting('server_encoding') = 'UTF8' AS is_utf8,
    current_setting('fsync')::boolean AS fsync,
    current_setting('full_page_writes')::boolean AS full_page_writes,
    NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean AS takes_writes,
    current_setting('session_replication_role') = 'origin' AS checks_foreign_keys,
    inet_client_addr() IS NOT DISTINCT FROM inet_server_addr()
    OR EXISTS (SELECT FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl)
    OR EXISTS (SELECT FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted) AS is_encrypted,
    coalesce(current_setting('auto_explain.log_parameter_max_length', true), '0') = '0'
    AND coalesce(current_setting('pgaudit.log_parameter', true), 'off') = 'off' AS hides_parameters,
    clock_timestamp() AS clock,
    coalesce(pg_has_role(session_user, app.oid, assume.privilege), false) AS role_allowed,
    NOT login.rolsuper AS is_no_superuser,
    login.rolsuper OR pg_has_role(session_user, owner.oid, assume.privilege) IS NOT TRUE AS is_no_owner,
    EXISTS (
        SELECT FROM pg_catalog.pg_class
        WHERE relnamespace = to_regnamespace('stackmgr')
            AND relname = 'schema_migrations'
    ) AS schema_exists,
    EXISTS (
        SELECT FROM pg_catalog.pg_constraint
        WHERE connamespace = to_regnamespace('stackmgr')
            AND conname = 'creation_receipts_stack_fkey'
            AND condeferred
    ) AND EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'citus') AS is_distributed
FROM pg_catalog.pg_roles AS login
CROSS JOIN (
    SELECT CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
) AS assume (privilege)
LEFT JOIN pg_catalog.pg_roles AS app ON app.rolname = 'stackmgr_app'
LEFT JOIN pg_catalog.pg_roles AS owner ON owner.rolname = 'stackmgr_owner'
WHERE login.rolname = session_user;
