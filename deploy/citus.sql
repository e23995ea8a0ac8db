-- Distribute the schema over the nodes of a Citus cluster. Run once by a superuser, on the coordinator, after
-- `stackmgr migrate` and `citus_add_node`: see CITUS.md. The tables are distributed in one transaction.
--
--     psql -X -d stackmgr -f citus.sql

\set ON_ERROR_STOP on

-- A node connects to another one as the role that a session has assumed. pg_hba.conf must restrict these roles to
-- the nodes of the cluster.
ALTER ROLE stackmgr_owner LOGIN;
ALTER ROLE stackmgr_app LOGIN;
ALTER ROLE stackmgr_reader LOGIN;

BEGIN;

-- The shards of a table share one connection to a node, which sees the changes of this transaction.
SET LOCAL citus.multi_shard_modify_mode = 'sequential';

-- A foreign key between tables that are not distributed alike would be in the way: dropped, and added again below.
ALTER TABLE stackmgr.stack_revisions DROP CONSTRAINT stack_revisions_stack_fkey;
ALTER TABLE stackmgr.creation_receipts DROP CONSTRAINT creation_receipts_stack_fkey;
ALTER TABLE stackmgr.manager_rebindings DROP CONSTRAINT manager_rebindings_manager_id_fkey;

SELECT create_reference_table('stackmgr.managers');
SELECT create_reference_table('stackmgr.manager_rebindings');
SELECT create_distributed_table('stackmgr.stacks', 'manager_id');
SELECT create_distributed_table('stackmgr.stack_revisions', 'manager_id', colocate_with => 'stackmgr.stacks');
SELECT create_distributed_table('stackmgr.creation_receipts', 'manager_id', colocate_with => 'stackmgr.stacks');

ALTER TABLE stackmgr.stack_revisions
    ADD CONSTRAINT stack_revisions_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id);
-- Deferred: a receipt is inserted before its stack, by a statement of its own.
ALTER TABLE stackmgr.creation_receipts
    ADD CONSTRAINT creation_receipts_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id)
        DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE stackmgr.manager_rebindings
    ADD CONSTRAINT manager_rebindings_manager_id_fkey
        FOREIGN KEY (manager_id) REFERENCES stackmgr.managers (manager_id);

-- To insert into a reference table with ON CONFLICT, Citus locks its copies, for which a role needs UPDATE of a
-- column. This one only orders lists.
GRANT UPDATE (created_at) ON stackmgr.managers TO stackmgr_app;

SET LOCAL ROLE stackmgr_owner;

-- The writes of sql/citus: each statement uses one shard, and all of them the same node.
CREATE FUNCTION stackmgr.create_stack(
    manager_id      uuid,
    idempotency_key text,
    input_digest    bytea,
    new_stack_id    uuid,
    revision_id     uuid,
    name            stackmgr.stack_name,
    allocation      stackmgr.allocation,
    preset          stackmgr.preset,
    identity_id     text,
    request_id      text,
    key_id          text
) RETURNS TABLE (stack_id text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    VALUES (create_stack.manager_id, create_stack.idempotency_key, create_stack.input_digest, new_stack_id)
    ON CONFLICT (manager_id, idempotency_key) DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, name, allocation, preset)
    VALUES (
        create_stack.manager_id, new_stack_id, create_stack.revision_id, 1,
        create_stack.name, create_stack.allocation, create_stack.preset
    );
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id, key_id
    )
    VALUES (
        create_stack.manager_id, new_stack_id, 1, create_stack.revision_id,
        create_stack.name, create_stack.allocation, create_stack.preset,
        create_stack.identity_id, left(create_stack.request_id, 255), create_stack.key_id
    );
    stack_id := new_stack_id;
    RETURN NEXT;
END
$$;

CREATE FUNCTION stackmgr.update_stack(
    manager_id      uuid,
    old_stack_id    uuid,
    new_revision_id uuid,
    new_name        stackmgr.stack_name,
    new_allocation  stackmgr.allocation,
    new_preset      stackmgr.preset,
    identity_id     text,
    request_id      text,
    key_id          text
) RETURNS TABLE (stack_id text, revision_id text, name text, allocation text, preset text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    updated stackmgr.stacks;
BEGIN
    UPDATE stackmgr.stacks
    SET
        revision_id = new_revision_id,
        revision_number = revision_number + 1,
        name = coalesce(new_name, name),
        allocation = coalesce(new_allocation, allocation),
        preset = coalesce(new_preset, preset)
    WHERE manager_id = update_stack.manager_id
        AND stack_id = old_stack_id
    RETURNING manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at
    INTO updated;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id, key_id
    )
    VALUES (
        updated.manager_id, updated.stack_id, updated.revision_number, updated.revision_id,
        updated.name, updated.allocation, updated.preset,
        update_stack.identity_id, left(update_stack.request_id, 255), update_stack.key_id
    );
    RETURN QUERY SELECT
        updated.stack_id::text, updated.revision_id::text, updated.name::text, updated.allocation::text,
        updated.preset::text;
END
$$;

GRANT EXECUTE ON FUNCTION stackmgr.create_stack, stackmgr.update_stack TO stackmgr_app;

COMMIT;

-- Citus creates the functions on the nodes over connections that wait for an open transaction here.
SELECT create_distributed_function(function::regprocedure, 'manager_id', colocate_with => 'stackmgr.stacks')
FROM (VALUES ('stackmgr.create_stack'::regproc), ('stackmgr.update_stack')) AS functions (function);
