-- readiness: return whether the service can write here: the server, its schema, and the privileges of its role.
-- params:  none
-- returns: one row (takes_writes, schema_version, missing_privileges or null)
-- index:   none (a row for each migration; catalogs)
-- locks:   none
-- called by: http.health.Health.on_get_ready, operate.preflight.examine, operate.migrations.apply
-- why:     after a failover a pooled connection may still lead to the old primary, where reads succeed and
--          every write fails. The privileges are those that sql/migrations grants to what this release uses: without
--          one, only some requests would fail. What does not exist lacks no privilege.
--          Row security without a policy would make every account look empty.
SELECT
    NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean AS takes_writes,
    (SELECT coalesce(max(version), 0) FROM stackmgr.schema_migrations) AS schema_version,
    (
        SELECT string_agg(lacking.privilege || ' ON ' || lacking.object, ', ' ORDER BY lacking.object)
        FROM (
            SELECT 'USAGE' AS privilege, 'SCHEMA stackmgr' AS object
            WHERE NOT has_schema_privilege('stackmgr_app', 'stackmgr', 'USAGE')
            UNION ALL
            SELECT 'POLICY', 'stackmgr.' || relname || ', whose row security is enabled'
            FROM pg_catalog.pg_class
            WHERE relnamespace = to_regnamespace('stackmgr')
                AND row_security_active(oid)
                AND NOT EXISTS (
                    SELECT FROM pg_catalog.pg_policies
                    WHERE schemaname = 'stackmgr'
                        AND tablename = relname
                        AND permissive = 'PERMISSIVE'
                        AND roles && '{public,stackmgr_app}'
                )
            UNION ALL
            SELECT 'EXECUTE', 'stackmgr.' || split_part(needed.function, '(', 1)
            FROM (
                VALUES
                ('name_is_blank(text)'),
                ('allocation_is_normalised(json)'),
                ('api_key_state(timestamptz,timestamptz)'),
                ('caller(uuid,uuid,text,bytea)'),
                ('create_stack(uuid,text,bytea,uuid,uuid,text,text,text,text,text,text)'),
                ('update_stack(uuid,uuid,uuid,text,text,text,text,text,text)')
            ) AS needed (function)
            WHERE NOT has_function_privilege(
                'stackmgr_app', to_regprocedure('stackmgr.' || needed.function)::oid, 'EXECUTE'
            )
            UNION ALL
            SELECT needed.privilege, 'stackmgr.' || needed.relation
            FROM (
                VALUES
                ('schema_migrations', 'SELECT', NULL),
                ('managers', 'SELECT', NULL),
                ('managers', 'INSERT', '{manager_id,external_id,identity_id}'),
                ('api_keys', 'SELECT', NULL),
                ('api_keys', 'UPDATE', '{last_used_at}'),
                ('api_key_quota_slots', 'SELECT', NULL),
                ('api_key_quota_slots', 'UPDATE', '{granted_at}'),
                ('api_key_quota_queues', 'SELECT', NULL),
                ('api_key_quota_queues', 'UPDATE', '{granted_at}'),
                ('stacks', 'SELECT', NULL),
                ('stacks', 'INSERT', '{manager_id,stack_id,revision_id,revision_number,name,allocation,preset}'),
                ('stacks', 'UPDATE', '{revision_id,revision_number,name,allocation,preset}'),
                (
                    'stack_revisions', 'INSERT',
                    '{manager_id,stack_id,revision_number,revision_id,name,allocation,preset,identity_id,request_id,key_id}'
                ),
                ('creation_receipts', 'SELECT', NULL),
                ('creation_receipts', 'INSERT', '{manager_id,idempotency_key,input_digest,stack_id}')
            ) AS needed (relation, privilege, columns)
            CROSS JOIN LATERAL (SELECT to_regclass('stackmgr.' || needed.relation)::oid AS oid) AS found
            WHERE NOT has_table_privilege('stackmgr_app', found.oid, needed.privilege)
                AND (
                    needed.columns IS NULL
                    OR EXISTS (
                        SELECT FROM unnest(needed.columns::text[]) AS each (name)
                        WHERE NOT has_column_privilege('stackmgr_app', found.oid, each.name, needed.privilege)
                    )
                )
        ) AS lacking
    ) AS missing_privileges;
