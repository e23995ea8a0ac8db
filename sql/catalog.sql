-- catalog: describe the objects of the schema and who may use them, to compare them with those of the release.
-- params:  none
-- returns: many (object, definition, rejects), in the order of object; rejects is whether an object that the release
--          does not have may change or reject a write
-- index:   none (catalogs)
-- locks:   none
-- called by: operate.preflight.examine
-- why:     sql/catalog.tsv has the first two columns for a new database. A definition is the same on PostgreSQL 15 to
--          18, after a restore and pg_upgrade: since 18 a NOT NULL is a constraint too, so only the column lists it.
--          The parts of a partitioned table count as the table, and the word ONLY is left out. The rights are those in
--          effect, by membership and PUBLIC too. Functions of an extension are left out. A btree rejects a long value,
--          so an index on an unbounded column may. Names are complete only if the search_path is pg_catalog.
WITH classes AS (
    SELECT
        oid, relkind, relispartition, relowner, relrowsecurity OR relforcerowsecurity AS has_row_security,
        relpersistence <> 'p' AS is_unlogged, relkind IN ('r', 'p') AND relreplident = 'n' AS has_no_identity,
        reloptions, 'relation ' || coalesce(pg_partition_root(oid), oid)::regclass AS object
    FROM pg_catalog.pg_class
    WHERE relnamespace = to_regnamespace('stackmgr') AND relkind NOT IN ('i', 'I', 't')
),
columns AS (
    SELECT object, oid, relkind, relispartition, attnum, attname
    FROM classes
    JOIN pg_catalog.pg_attribute ON attrelid = oid AND attnum > 0 AND NOT attisdropped
),
functions AS (
    SELECT oid, 'function ' || oid::regprocedure AS object, proowner, prokind
    FROM pg_catalog.pg_proc
    WHERE pronamespace = to_regnamespace('stackmgr')
        AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_depend
            WHERE classid = 'pg_catalog.pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e'
        )
),
types AS (
    SELECT oid, 'type ' || oid::regtype AS object, typowner, typbasetype, typtypmod, typnotnull, typdefault
    FROM pg_catalog.pg_type
    WHERE typnamespace = to_regnamespace('stackmgr') AND typtype IN ('d', 'e', 'r')
),
roles AS (
    SELECT 'public' AS role
    UNION ALL
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('stackmgr_app', 'stackmgr_reader')
),
privileges AS (
    SELECT object, role, verb || CASE
        WHEN count(attname) < max(number) THEN ' (' || string_agg(attname, ', ' ORDER BY attname) || ')' ELSE ''
    END AS privilege
    FROM (
        SELECT DISTINCT object, role, verb, attname, count(attnum) OVER (PARTITION BY oid, role, verb) AS number,
            has_column_privilege(role, oid, attnum, verb) AS is_granted
        FROM columns
        CROSS JOIN roles
        CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('REFERENCES')) AS verbs (verb)
        WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    ) AS of_columns
    WHERE is_granted
    GROUP BY object, role, verb
    UNION
    SELECT object, role, verb
    FROM classes
    CROSS JOIN roles
    CROSS JOIN (VALUES ('DELETE'), ('TRUNCATE'), ('TRIGGER')) AS verbs (verb)
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND has_table_privilege(role, oid, verb)
    UNION ALL
    SELECT object, role, 'EXECUTE' FROM functions CROSS JOIN roles WHERE has_function_privilege(role, oid, 'EXECUTE')
    UNION ALL
    SELECT object, role, 'USAGE' FROM types CROSS JOIN roles WHERE has_type_privilege(role, oid, 'USAGE')
    UNION ALL
    SELECT 'schema stackmgr', role, verb
    FROM roles
    CROSS JOIN (VALUES ('USAGE'), ('CREATE')) AS verbs (verb)
    WHERE has_schema_privilege(role, 'stackmgr', verb)
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
    FROM classes
    CROSS JOIN unnest(reloptions) AS options (option)
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
            (SELECT option FROM unnest(attoptions) AS options (option) WHERE starts_with(option, 'n_distinct='))
        ),
        attnotnull OR atthasdef OR attidentity <> '' OR typtype = 'd'
    FROM columns
    JOIN pg_catalog.pg_attribute ON attrelid = columns.oid AND pg_attribute.attnum = columns.attnum
    JOIN pg_catalog.pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = pg_attribute.attnum
    WHERE relkind IN ('r', 'p') AND NOT relispartition
    UNION ALL
    SELECT
        object || ': index ' || pg_class.relname,
        replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
            || CASE WHEN indisvalid AND indisready THEN '' ELSE ' (invalid)' END,
        indisunique OR indexprs IS NOT NULL OR indpred IS NOT NULL OR EXISTS (
            SELECT FROM columns
            WHERE columns.oid = indrelid AND attnum = ANY (indkey)
                AND attname IN ('name', 'allocation', 'idempotency_key')
        )
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
    SELECT object || ': privileges of ' || role, string_agg(privilege, ', ' ORDER BY privilege), true
    FROM privileges
    GROUP BY object, role
    UNION ALL
    SELECT
        'function pg_catalog.pg_logical_emit_message',
        CASE WHEN bool_and(has_function_privilege('stackmgr_app', oid, 'EXECUTE'))
            THEN 'stackmgr_app may execute it' ELSE 'stackmgr_app may not execute it' END,
        false
    FROM pg_catalog.pg_proc
    WHERE proname = 'pg_logical_emit_message'
) AS described
ORDER BY object COLLATE "C";
