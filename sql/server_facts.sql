-- server_facts: return what the service relies on in a server and in its own login.
-- params:  none
-- returns: one row (is_recent, is_utf8, fsync, full_page_writes, rejects_damage, takes_writes,
--          checks_foreign_keys, is_encrypted, hides_parameters, slow_settings or null, connections, clock,
--          role_allowed, is_no_superuser, is_no_owner, schema_exists, is_distributed)
-- index:   none (catalogs)
-- locks:   none
-- called by: operate.preflight.examine
-- why:     from PostgreSQL 16 on, only the SET option of a membership lets its holder assume the role. The
--          schema is searched in the catalog, which a login without rights to the schema may read.
--          A connection within one host needs no encryption; behind a pooler it is the pooler's. auto_explain and
--          pgaudit have settings of their own for the parameters of statements. The plan of a statement is its index's
--          only while index scans are on. connections is how many this login may have. deploy/citus.sql defers the
--          check of receipts, which somebody else may do without Citus.
SELECT
    current_setting('server_version_num')::integer >= 150000 AS is_recent,
    current_setting('server_encoding') = 'UTF8' AS is_utf8,
    current_setting('fsync')::boolean AS fsync,
    current_setting('full_page_writes')::boolean AS full_page_writes,
    current_setting('zero_damaged_pages') = 'off'
    AND current_setting('ignore_checksum_failure') = 'off' AS rejects_damage,
    NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean AS takes_writes,
    current_setting('session_replication_role') = 'origin' AS checks_foreign_keys,
    inet_client_addr() IS NOT DISTINCT FROM inet_server_addr()
    OR EXISTS (SELECT FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl)
    OR EXISTS (SELECT FROM pg_catalog.pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted) AS is_encrypted,
    coalesce(current_setting('auto_explain.log_parameter_max_length', true), '0') = '0'
    AND coalesce(current_setting('pgaudit.log_parameter', true), 'off') = 'off'
    AND current_setting('log_parameter_max_length_on_error') = '0'
    AND (
        current_setting('log_parameter_max_length') = '0'
        OR (current_setting('log_statement') IN ('none', 'ddl')
            AND '-1' = ALL (ARRAY[
                current_setting('log_min_duration_statement'), current_setting('log_min_duration_sample')
            ]))
    ) AS hides_parameters,
    (
        SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name)
        FROM pg_catalog.pg_settings
        WHERE (name IN ('autovacuum', 'enable_indexonlyscan', 'enable_indexscan', 'track_counts') AND setting = 'off')
            OR (name = 'commit_delay' AND setting::integer >= 10000)
    ) AS slow_settings,
    (
        SELECT least(
            nullif(login.rolconnlimit, -1),
            nullif(datconnlimit, -1),
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                - coalesce(current_setting('reserved_connections', true), '0')::integer
        )
        FROM pg_catalog.pg_database
        WHERE datname = current_database()
    ) AS connections,
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
