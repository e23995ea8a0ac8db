-- catalog: describe the objects of the schema and who may use them, to compare them with those of the release.
-- params:  none
-- returns: many (object, definition, rejects), in the order of object; rejects is whether an object that the release
--          does not have may change or reject a write
-- index:   none (catalogs)
-- locks:   none
-- called by: operate.preflight.examine
-- why:     sql/catalog.tsv has the first two columns for a new database. A definition is the same on PostgreSQL 15 to
--          18, after a restore and pg_upgrade: since 18 a NOT NULL is a constraint too, so only the column lists it.
--          The parts of a partitioned table count as the table, and the word ONLY is left out. Privileges are those of
--          the access control lists, for every role and PUBLIC; attributes and memberships are those of the schema's
--          roles and of this login, unless it is a superuser. A database without a list has PostgreSQL's default.
--          Functions of an extension are left out. operate.preflight runs the statements. Names are complete
--          only if the search_path is pg_catalog.
WITH classes AS (
    SELECT
        oid, relkind, relispartition, relowner, relrowsecurity OR relforcerowsecurity AS has_row_security,
        relpersistence <> 'p' AS is_unlogged, relkind IN ('r', 'p') AND relreplident = 'n' AS has_no_identity,
        reloptions, relacl, 'relation ' || coalesce(pg_partition_root(oid), oid)::regclass AS object
    FROM pg_catalog.pg_class
    WHERE relnamespace = to_regnamespace('stackmgr') AND relkind NOT IN ('i', 'I', 't')
),
columns AS (
    SELECT object, oid, relkind, relispartition, relowner, attnum, attname, attacl, attoptions
    FROM classes
    JOIN pg_catalog.pg_attribute ON attrelid = oid AND attnum > 0 AND NOT attisdropped
),
functions AS (
    SELECT oid, 'function ' || oid::regprocedure AS object, proowner, prokind, proacl
    FROM pg_catalog.pg_proc
    WHERE pronamespace = to_regnamespace('stackmgr')
        AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_depend
            WHERE classid = 'pg_catalog.pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e'
        )
),
types AS (
    SELECT oid, 'type ' || oid::regtype AS object, typowner, typacl, typbasetype, typtypmod, typnotnull, typdefault
    FROM pg_catalog.pg_type
    WHERE typnamespace = to_regnamespace('stackmgr') AND typtype IN ('d', 'e', 'r')
),
roles AS (
    SELECT oid, rolname, rolsuper, concat_ws(
        ', ',
        CASE WHEN rolname <> session_user THEN CASE WHEN rolcanlogin THEN 'LOGIN' ELSE 'NOLOGIN' END END,
        CASE WHEN rolsuper THEN 'SUPERUSER' END,
        CASE WHEN rolcreaterole THEN 'CREATEROLE' END,
        CASE WHEN rolcreatedb THEN 'CREATEDB' END,
        CASE WHEN rolreplication THEN 'REPLICATION' END,
        CASE WHEN rolbypassrls THEN 'BYPASSRLS' END
    ) AS attributes
    FROM pg_catalog.pg_roles
),
checked_roles AS (
    SELECT oid, rolname, rolsuper, attributes
    FROM roles
    WHERE rolname IN ('stackmgr_owner', 'stackmgr_app', 'stackmgr_reader') OR (rolname = session_user AND NOT rolsuper)
),
acls AS (
    SELECT
        object, relowner AS owner, CASE relkind WHEN 'S' THEN 's' ELSE 'r' END AS kind, relacl AS acl, NULL AS attname
    FROM classes
    UNION ALL
    SELECT object, relowner, 'c', attacl, attname FROM columns WHERE attacl IS NOT NULL
    UNION ALL
    SELECT object, proowner, 'f', proacl, NULL FROM functions
    UNION ALL
    SELECT object, typowner, 'T', typacl, NULL FROM types
    UNION ALL
    SELECT 'schema stackmgr', nspowner, 'n', nspacl, NULL FROM pg_catalog.pg_namespace WHERE nspname = 'stackmgr'
),
granted AS (
    SELECT DISTINCT
        object, attname, owner = grantee AS is_owner,
        CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END AS grantee,
        privilege_type || CASE WHEN is_grantable AND grantee <> owner THEN ' WITH GRANT OPTION' ELSE '' END AS privilege
    FROM acls
    CROSS JOIN LATERAL aclexplode(coalesce(acl, acldefault(kind::"char", owner)))
),
lacked AS (
    SELECT object, privilege_type AS privilege
    FROM acls
    CROSS JOIN LATERAL aclexplode(acldefault(kind::"char", owner))
    WHERE grantee = owner
    EXCEPT
    SELECT object, privilege FROM granted WHERE is_owner
),
of_database AS (
    SELECT
        CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END AS grantee, privilege_type,
        datacl IS NOT NULL AS is_granted
    FROM pg_catalog.pg_database
    CROSS JOIN LATERAL aclexplode(coalesce(datacl, acldefault('d', datdba)))
    WHERE datname = current_database()
        AND (grantee = 0 OR (grantee IN (SELECT oid FROM checked_roles) AND privilege_type <> 'CONNECT'))
        AND (datacl IS NOT NULL OR EXISTS (SELECT FROM checked_roles WHERE rolname = session_user))
),
by_default AS (
    SELECT DISTINCT concat(
        privilege_type, ' on ', kinds.name, ' to ',
        CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(grantee) END
    ) AS privilege
    FROM (
        VALUES ('r', 'r', 'tables'), ('S', 's', 'sequences'), ('f', 'f', 'functions'), ('T', 'T', 'types')
    ) AS kinds (kind, letter, name)
    CROSS JOIN checked_roles
    CROSS JOIN (VALUES (0::oid), (to_regnamespace('stackmgr')::oid)) AS places (namespace)
    LEFT JOIN pg_catalog.pg_default_acl
        ON defaclrole = checked_roles.oid AND defaclobjtype = kind::"char" AND defaclnamespace = namespace
    CROSS JOIN LATERAL aclexplode(
        coalesce(defaclacl, CASE WHEN namespace = 0 THEN acldefault(letter::"char", checked_roles.oid) END)
    )
    WHERE rolname = 'stackmgr_owner' AND grantee <> checked_roles.oid
)
SELECT object, definition, rejects
FROM (
    SELECT
        object,
        concat_ws(
            ', ',
            'owner ' || string_agg(DISTINCT relowner::regrole::text, ' and '),
            CASE WHEN bool_or(has_row_security) THEN 'row security' END,
            CASE WHEN bool_or(is_unlogged) THEN 'unlogged' END,
            CASE WHEN bool_or(has_no_identity) THEN 'no replica identity' END,
            CASE WHEN bool_or(EXISTS (
                SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = classes.oid AND tgenabled <> 'O'
            )) THEN 'disabled triggers' END,
            CASE WHEN bool_or(relkind = 'r' AND EXISTS (
                SELECT FROM pg_catalog.pg_inherits WHERE inhparent = classes.oid
            )) THEN 'inherited' END,
            'view ' || max(CASE WHEN relkind IN ('v', 'm') THEN md5(pg_get_viewdef(oid)) END)
        ) AS definition,
        false AS rejects
    FROM classes
    GROUP BY object
    UNION ALL
    SELECT object || ': settings', string_agg(DISTINCT option, ', ' ORDER BY option), false
    FROM (
        SELECT object, unnest(reloptions) AS option FROM classes
        UNION ALL
        SELECT object, attname || '.' || unnest(attoptions) FROM columns
        UNION ALL
        SELECT object, pg_class.relname || '.' || unnest(pg_class.reloptions)
        FROM pg_catalog.pg_index
        JOIN classes ON classes.oid = indrelid
        JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid AND NOT pg_class.relispartition
    ) AS options
    GROUP BY object
    UNION ALL
    SELECT
        object || ': column ' || pg_attribute.attname,
        concat_ws(
            ' ',
            format_type(atttypid, atttypmod),
            CASE WHEN attcollation <> typcollation THEN 'COLLATE ' || attcollation::regcollation END,
            CASE WHEN attnotnull THEN 'NOT NULL' END,
            'DEFAULT ' || pg_get_expr(adbin, adrelid),
            CASE WHEN attstorage <> typstorage THEN 'STORAGE ' || attstorage::text END,
            'IDENTITY ' || nullif(attidentity::text, '')
        ),
        false
    FROM columns
    JOIN pg_catalog.pg_attribute ON attrelid = columns.oid AND pg_attribute.attnum = columns.attnum
    JOIN pg_catalog.pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = pg_attribute.attnum
    WHERE relkind IN ('r', 'p') AND NOT relispartition
    UNION ALL
    SELECT
        object || ': index ' || pg_class.relname,
        regexp_replace(replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON '), ' WITH \([^)]+\)', '')
            || CASE WHEN indisvalid AND indisready THEN '' ELSE ' (invalid)' END,
        indisunique
    FROM pg_catalog.pg_index
    JOIN classes ON classes.oid = indrelid
    JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid AND NOT pg_class.relispartition
    UNION ALL
    SELECT
        coalesce(classes.object, types.object) || ': constraint ' || conname,
        pg_get_constraintdef(pg_constraint.oid),
        true
    FROM pg_catalog.pg_constraint
    LEFT JOIN classes ON classes.oid = conrelid
    LEFT JOIN types ON types.oid = contypid
    WHERE coalesce(classes.oid, types.oid) IS NOT NULL AND contype <> 'n' AND conislocal
    UNION ALL
    SELECT
        object || ': reference by ' || conname || ' of ' || coalesce(pg_partition_root(conrelid), conrelid)::regclass,
        pg_get_constraintdef(pg_constraint.oid),
        true
    FROM pg_catalog.pg_constraint
    JOIN classes ON classes.oid = confrelid
    WHERE contype = 'f' AND conislocal
    UNION ALL
    SELECT object || ': trigger ' || tgname, pg_get_triggerdef(pg_trigger.oid), true
    FROM pg_catalog.pg_trigger
    JOIN classes ON classes.oid = tgrelid
    WHERE NOT tgisinternal AND tgparentid = 0
    UNION ALL
    SELECT object || ': rule ' || rulename, pg_get_ruledef(pg_rewrite.oid), true
    FROM pg_catalog.pg_rewrite
    JOIN classes ON classes.oid = ev_class
    WHERE rulename <> '_RETURN'
    UNION ALL
    SELECT
        object,
        'owner ' || proowner::regrole
            || CASE WHEN prokind = 'a' THEN ', aggregate' ELSE ', definition ' || md5(pg_get_functiondef(oid)) END,
        false
    FROM functions
    UNION ALL
    SELECT
        object,
        concat_ws(
            ' ',
            'owner ' || typowner::regrole || ',', format_type(nullif(typbasetype, 0), typtypmod),
            CASE WHEN typnotnull THEN 'NOT NULL' END, 'DEFAULT ' || typdefault
        ),
        false
    FROM types
    UNION ALL
    SELECT 'schema stackmgr', 'owner ' || nspowner::regrole, false
    FROM pg_catalog.pg_namespace
    WHERE nspname = 'stackmgr'
    UNION ALL
    SELECT object || ': privileges of ' || grantee, string_agg(privilege, ', ' ORDER BY privilege), true
    FROM (
        SELECT
            object, grantee,
            privilege || coalesce(' (' || string_agg(attname, ', ' ORDER BY attname) || ')', '') AS privilege
        FROM granted
        WHERE NOT is_owner
        GROUP BY object, grantee, privilege, attname IS NULL
    ) AS privileges
    GROUP BY object, grantee
    UNION ALL
    SELECT object || ': privileges that its owner lacks', string_agg(privilege, ', ' ORDER BY privilege), true
    FROM lacked
    GROUP BY object
    UNION ALL
    SELECT
        'privileges of ' || grantee || ' on the database',
        string_agg(privilege_type, ', ' ORDER BY privilege_type),
        is_granted
    FROM of_database
    GROUP BY grantee, is_granted
    UNION ALL
    SELECT 'default privileges of stackmgr_owner', string_agg(privilege, ', ' ORDER BY privilege), true
    FROM by_default
    HAVING count(privilege) > 0
    UNION ALL
    SELECT 'role ' || rolname, attributes, true
    FROM checked_roles
    WHERE attributes <> ''
    UNION ALL
    SELECT
        'membership of ' || checked_roles.rolname || ' in ' || of.rolname, 'granted',
        of.attributes NOT IN ('LOGIN', 'NOLOGIN')
        OR (
            starts_with(of.rolname, 'pg_')
            AND of.rolname NOT IN ('pg_monitor', 'pg_read_all_settings', 'pg_read_all_stats', 'pg_stat_scan_tables')
        )
    FROM checked_roles
    JOIN roles AS of ON of.oid <> checked_roles.oid AND pg_has_role(checked_roles.oid, of.oid, 'MEMBER')
    WHERE NOT checked_roles.rolsuper
        AND NOT (
            checked_roles.rolname = session_user AND of.rolname IN ('stackmgr_owner', 'stackmgr_app', 'stackmgr_reader')
        )
) AS described
ORDER BY object COLLATE "C";
