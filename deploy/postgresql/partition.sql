-- Partition stack_revisions and creation_receipts by hash of manager_id, 16 parts each, while the service runs: for a
-- DBA, as a login that may assume stackmgr_owner, and not through a pooler, whose sessions would keep the role.
--
--     psql -X -d stackmgr -f partition.sql
--
-- Copies both tables while triggers copy what is written meanwhile, then exchanges them in one transaction. It waits
-- for no lock longer than 0.25 s, and repeats. Needs twice the space. Do not archive or erase meanwhile; a migration
-- fails after 60 s. The former tables stay, as stack_revisions_old and creation_receipts_old, until you drop them.
--
-- If it ends before the exchange, for whatever reason, run it again: it begins with removing what is left. With
-- `-v undo=yes` that is all it does.

\set ON_ERROR_STOP on

SET ROLE stackmgr_owner;
SET search_path = pg_catalog;
SET statement_timeout = 0;
SET lock_timeout = '250ms';
SET client_min_messages = warning;
-- Without its psql the session ends, and with it the lock, which is that of migrations.
SET client_connection_check_interval = '1s';

DO $$
BEGIN
    IF NOT pg_try_advisory_lock(4663001) THEN
        RAISE EXCEPTION 'a migration or another run of this script is under way';
    END IF;
    IF EXISTS (SELECT FROM pg_class WHERE oid = 'stackmgr.stack_revisions'::regclass AND relkind = 'p') THEN
        RAISE EXCEPTION 'stack_revisions is partitioned already';
    END IF;
END
$$;

-- What an earlier run left: first the functions, whose triggers write into the copies. A failed attempt releases its
-- locks, here and below.
DO $$
DECLARE
    command text;
BEGIN
    FOREACH command IN ARRAY ARRAY[
        'DROP FUNCTION IF EXISTS stackmgr.copy_revision(), stackmgr.copy_receipt() CASCADE',
        'DROP TABLE IF EXISTS stackmgr.stack_revisions_new, stackmgr.creation_receipts_new'
    ] LOOP
        LOOP
            BEGIN
                EXECUTE command;
                EXIT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                PERFORM pg_sleep(1);
            END;
        END LOOP;
        COMMIT;
    END LOOP;
END
$$;

\if :{?undo}
\quit
\endif

-- The same columns, checks, comments, rights and storage parameters; the foreign keys follow the rows.
DO $$
DECLARE
    name   text;
    key    text;
    clause text;
BEGIN
    FOREACH name IN ARRAY ARRAY['stack_revisions', 'creation_receipts'] LOOP
        EXECUTE format(
            'CREATE TABLE stackmgr.%I (LIKE stackmgr.%I INCLUDING ALL EXCLUDING INDEXES)'
            ' PARTITION BY HASH (manager_id)',
            name || '_new', name
        );
        SELECT pg_get_constraintdef(oid) INTO STRICT key
        FROM pg_constraint
        WHERE conrelid = format('stackmgr.%I', name)::regclass AND contype = 'p';
        EXECUTE format('ALTER TABLE stackmgr.%I ADD CONSTRAINT %I %s', name || '_new', name || '_new_pkey', key);
        EXECUTE format(
            'COMMENT ON TABLE stackmgr.%I IS %L',
            name || '_new', obj_description(format('stackmgr.%I', name)::regclass, 'pg_class')
        );
        SELECT format('WITH (%s)', array_to_string(reloptions, ', ')) INTO STRICT clause
        FROM pg_class
        WHERE oid = format('stackmgr.%I', name)::regclass;
        FOR part IN 0..15 LOOP
            EXECUTE format(
                'CREATE TABLE stackmgr.%I PARTITION OF stackmgr.%I FOR VALUES WITH (MODULUS 16, REMAINDER %s) %s',
                name || '_' || part, name || '_new', part, clause
            );
        END LOOP;
        FOR clause IN
            SELECT format('GRANT %s ON stackmgr.%I TO %s', acl.privilege_type, name || '_new', acl.grantee::regrole)
            FROM pg_class, aclexplode(relacl) AS acl
            WHERE oid = format('stackmgr.%I', name)::regclass AND acl.grantee <> relowner
            UNION ALL
            SELECT format(
                'GRANT %s (%I) ON stackmgr.%I TO %s',
                acl.privilege_type, attname, name || '_new', acl.grantee::regrole
            )
            FROM pg_attribute, aclexplode(attacl) AS acl
            WHERE attrelid = format('stackmgr.%I', name)::regclass
        LOOP
            EXECUTE clause;
        END LOOP;
    END LOOP;
END
$$;

CREATE INDEX stack_revisions_new_created_at ON stackmgr.stack_revisions_new USING brin (created_at)
    WITH (autosummarize = on);

-- With the owner's rights: the service may not insert created_at.
CREATE FUNCTION stackmgr.copy_revision() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO stackmgr.stack_revisions_new VALUES (NEW.*) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE FUNCTION stackmgr.copy_receipt() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO stackmgr.creation_receipts_new VALUES (NEW.*) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

DO $$
BEGIN
    LOOP
        BEGIN
            CREATE TRIGGER copy_revision AFTER INSERT ON stackmgr.stack_revisions
                FOR EACH ROW EXECUTE FUNCTION stackmgr.copy_revision();
            CREATE TRIGGER copy_receipt AFTER INSERT ON stackmgr.creation_receipts
                FOR EACH ROW EXECUTE FUNCTION stackmgr.copy_receipt();
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(1);
        END;
    END LOOP;
END
$$;

-- A 256th of the managers at a time, each in a transaction.
DO $$
DECLARE
    low  uuid;
    high uuid;
BEGIN
    FOR part IN 0..255 LOOP
        low := rpad(lpad(to_hex(part), 2, '0'), 32, '0');
        high := rpad(lpad(to_hex(part), 2, '0'), 32, 'f');
        INSERT INTO stackmgr.stack_revisions_new
        SELECT * FROM stackmgr.stack_revisions WHERE manager_id BETWEEN low AND high
        ON CONFLICT DO NOTHING;
        INSERT INTO stackmgr.creation_receipts_new
        SELECT * FROM stackmgr.creation_receipts WHERE manager_id BETWEEN low AND high
        ON CONFLICT DO NOTHING;
        COMMIT;
    END LOOP;
END
$$;

-- Checked part by part, while writes pass; the exchange then only joins the constraints of the parts.
DO $$
DECLARE
    name    text;
    command text;
BEGIN
    FOREACH name IN ARRAY ARRAY['stack_revisions', 'creation_receipts'] LOOP
        FOR part IN 0..15 LOOP
            FOREACH command IN ARRAY ARRAY[
                'ADD CONSTRAINT %I FOREIGN KEY (manager_id, stack_id)'
                ' REFERENCES stackmgr.stacks (manager_id, stack_id) NOT VALID',
                'VALIDATE CONSTRAINT %I'
            ] LOOP
                LOOP
                    BEGIN
                        EXECUTE format(
                            'ALTER TABLE stackmgr.%I ' || command, name || '_' || part, name || '_stack_fkey'
                        );
                        EXIT;
                    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                        PERFORM pg_sleep(1);
                    END;
                END LOOP;
                COMMIT;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;

-- The exchange. A view refers to a table, whatever its name: each is replaced by its own text.
DO $$
DECLARE
    name  text;
    views text[];
    view  text;
BEGIN
    SELECT array_agg(format('CREATE OR REPLACE VIEW stackmgr.%I AS %s', viewname, definition)) INTO views
    FROM pg_views
    WHERE schemaname = 'stackmgr';
    LOOP
        BEGIN
            LOCK TABLE stackmgr.stacks IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE stackmgr.stack_revisions, stackmgr.creation_receipts IN ACCESS EXCLUSIVE MODE;
            FOREACH name IN ARRAY ARRAY['stack_revisions', 'creation_receipts'] LOOP
                EXECUTE format('ALTER TABLE stackmgr.%I DROP CONSTRAINT %I', name, name || '_stack_fkey');
                EXECUTE format('ALTER TABLE stackmgr.%I RENAME TO %I', name, name || '_old');
                EXECUTE format('ALTER INDEX stackmgr.%I RENAME TO %I', name || '_pkey', name || '_old_pkey');
                EXECUTE format('ALTER TABLE stackmgr.%I RENAME TO %I', name || '_new', name);
                EXECUTE format('ALTER INDEX stackmgr.%I RENAME TO %I', name || '_new_pkey', name || '_pkey');
                EXECUTE format(
                    'ALTER TABLE stackmgr.%I ADD CONSTRAINT %I FOREIGN KEY (manager_id, stack_id)'
                    ' REFERENCES stackmgr.stacks (manager_id, stack_id)',
                    name, name || '_stack_fkey'
                );
            END LOOP;
            ALTER INDEX stackmgr.stack_revisions_created_at RENAME TO stack_revisions_old_created_at;
            ALTER INDEX stackmgr.stack_revisions_new_created_at RENAME TO stack_revisions_created_at;
            FOREACH view IN ARRAY views LOOP
                EXECUTE view;
            END LOOP;
            DROP FUNCTION stackmgr.copy_revision(), stackmgr.copy_receipt() CASCADE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(1);
        END;
    END LOOP;
END
$$;
