-- 0001_roles_and_schema: the two roles, the schema they share, and the record of what was applied.
--
-- stackmgr_owner owns every object and is assumed by `stackmgr migrate` and `stackmgr keys`;
-- stackmgr_app is assumed by the service and holds only the rights granted below and in later files.
-- Neither can log in: grant them to the logins that your deployment uses.
--
-- Runs as the connecting login.  That login needs CREATE on the database, and either CREATEROLE (or more),
-- or roles that a DBA created beforehand and a membership in stackmgr_owner; then it need not be a member
-- of stackmgr_app.

DO $$
DECLARE
    wanted text;
BEGIN
    IF current_setting('server_encoding') <> 'UTF8' THEN
        RAISE EXCEPTION 'the encoding of this database is %, and must be UTF8', current_setting('server_encoding');
    END IF;
    FOREACH wanted IN ARRAY ARRAY['stackmgr_owner', 'stackmgr_app'] LOOP
        -- Roles belong to the whole cluster, and another database of it may be migrated at this moment:
        -- the loser of either race waits for the winner, finds the role or the membership there, and goes on.
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
        -- From PostgreSQL 16 on, only the SET option of a membership lets its holder assume the role, and
        -- whoever creates a role is made a member without it.
        BEGIN
            IF NOT pg_has_role(
                wanted,
                CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
            ) THEN
                EXECUTE format('GRANT %I TO CURRENT_USER', wanted);
            END IF;
        EXCEPTION WHEN insufficient_privilege OR unique_violation THEN
            -- Where it is stackmgr_owner that cannot be assumed, the next statement says so.
            NULL;
        END;
    END LOOP;
END
$$;

CREATE SCHEMA stackmgr AUTHORIZATION stackmgr_owner;

SET LOCAL ROLE stackmgr_owner;

GRANT USAGE ON SCHEMA stackmgr TO stackmgr_app;

-- What PUBLIC may do with functions and types unless told otherwise; it has no other rights by default.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;

CREATE TABLE stackmgr.schema_migrations (
    version     integer     NOT NULL,
    slug        text        NOT NULL,
    checksum    bytea       NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now(),
    applied_by  text        NOT NULL DEFAULT session_user,
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (version),
    CONSTRAINT schema_migrations_checksum_is_sha256 CHECK (octet_length(checksum) = 32)
);

GRANT SELECT ON stackmgr.schema_migrations TO stackmgr_app;
