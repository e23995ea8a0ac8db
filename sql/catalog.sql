-- catalog: describe the objects of the schema, to compare them with those of the release.
-- params:  none
-- returns: many (object, definition), in the order of object
-- index:   none (catalogs)
-- locks:   none
-- called by: operate.preflight.examine
-- why:     sql/catalog.tsv has the rows of a new database. A definition is the same on PostgreSQL 15 to 18:
--          since 18 a NOT NULL is a constraint too, so only the column lists it. The partitions of a table and the
--          word ONLY are left out. Names are complete only if the search_path is pg_catalog.
SELECT object, definition
FROM (
    SELECT
        'relation ' || pg_class.oid::regclass AS object,
        concat(
            'owner ' || relowner::regrole,
            CASE WHEN relrowsecurity OR relforcerowsecurity THEN ', row security' END,
            CASE WHEN EXISTS (
                SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgenabled <> 'O'
            ) THEN ', disabled triggers' END
        ) AS definition
    FROM pg_catalog.pg_class
    WHERE relnamespace = to_regnamespace('stackmgr') AND relkind IN ('r', 'p', 'v') AND NOT relispartition
    UNION ALL
    SELECT
        'column ' || attrelid::regclass || '.' || attname,
        concat_ws(
            ' ',
            format_type(atttypid, atttypmod),
            CASE WHEN attcollation = '"C"'::regcollation THEN 'COLLATE "C"' END,
            CASE WHEN attnotnull THEN 'NOT NULL' END,
            'DEFAULT ' || pg_get_expr(adbin, adrelid),
            CASE WHEN attstorage = 'e' THEN 'STORAGE EXTERNAL' END
        )
    FROM pg_catalog.pg_attribute
    JOIN pg_catalog.pg_class ON pg_class.oid = attrelid
    LEFT JOIN pg_catalog.pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = to_regnamespace('stackmgr')
        AND relkind IN ('r', 'p')
        AND NOT relispartition
        AND attnum > 0
        AND NOT attisdropped
    UNION ALL
    SELECT
        'index ' || indexrelid::regclass,
        replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
            || CASE WHEN indisvalid AND indisready THEN '' ELSE ' (invalid)' END
    FROM pg_catalog.pg_index
    JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
    WHERE relnamespace = to_regnamespace('stackmgr') AND NOT relispartition
    UNION ALL
    SELECT
        'constraint ' || conname || ' of '
            || CASE WHEN contypid = 0 THEN conrelid::regclass::text ELSE contypid::regtype::text END,
        pg_get_constraintdef(pg_constraint.oid)
    FROM pg_catalog.pg_constraint
    LEFT JOIN pg_catalog.pg_class ON pg_class.oid = conrelid
    WHERE connamespace = to_regnamespace('stackmgr')
        AND contype <> 'n'
        AND conparentid = 0
        AND relispartition IS NOT TRUE
    UNION ALL
    SELECT 'trigger ' || tgname || ' of ' || tgrelid::regclass, pg_get_triggerdef(pg_trigger.oid)
    FROM pg_catalog.pg_trigger
    JOIN pg_catalog.pg_class ON pg_class.oid = tgrelid
    WHERE relnamespace = to_regnamespace('stackmgr') AND NOT tgisinternal AND NOT relispartition
    UNION ALL
    SELECT 'function ' || oid::regprocedure, 'owner ' || proowner::regrole || ', source ' || md5(prosrc)
    FROM pg_catalog.pg_proc
    WHERE pronamespace = to_regnamespace('stackmgr')
    UNION ALL
    SELECT
        'function pg_catalog.pg_logical_emit_message',
        CASE WHEN bool_and(has_function_privilege('stackmgr_app', oid, 'EXECUTE'))
            THEN 'stackmgr_app may execute it' ELSE 'stackmgr_app may not execute it' END
    FROM pg_catalog.pg_proc
    WHERE proname = 'pg_logical_emit_message'
) AS described
ORDER BY object COLLATE "C";
