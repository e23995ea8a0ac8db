-- 0002_citus_functions: the writes of sql/citus, each a function that runs on the node of its manager.
--
-- Called with STACKMGR_SQL_VARIANT=citus only; deploy/citus.sql distributes them. Citus sends a replaced function to
-- every node. A function of other parameters is another function, which its migration distributes where stacks is
-- distributed; the old one is dropped a release later. No table is locked.
--
-- They repeat the columns of sql/stack_create.sql and sql/stack_update.sql, whose common table expressions Citus runs
-- one by one in a distributed transaction. tests/sql/test_citus.py compares every column that both write.
--
-- Citus 14.0.1 adds a plan of the shard to each kept plan whenever it runs: 90 kB of memory a write. It keeps none
-- of EXECUTE, and none of an insertion with a volatile function, which an update may not have. The parameters are
-- text so that the value of a domain is checked once, here, and not on the coordinator as well.

SET LOCAL ROLE stackmgr_owner;

CREATE FUNCTION stackmgr.create_stack(
    manager_id      uuid,
    idempotency_key text,
    input_digest    bytea,
    new_stack_id    uuid,
    revision_id     uuid,
    name            text,
    allocation      text,
    preset          text,
    identity_id     text,
    request_id      text,
    key_id          text
) RETURNS TABLE (stack_id text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    checked_name       stackmgr.stack_name := create_stack.name;
    checked_allocation stackmgr.allocation := create_stack.allocation;
    checked_preset     stackmgr.preset := create_stack.preset;
BEGIN
    INSERT INTO stackmgr.creation_receipts (manager_id, idempotency_key, input_digest, stack_id)
    VALUES (
        create_stack.manager_id, create_stack.idempotency_key, create_stack.input_digest,
        coalesce(new_stack_id, gen_random_uuid())
    )
    ON CONFLICT (manager_id, idempotency_key) DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO stackmgr.stacks (manager_id, stack_id, revision_id, revision_number, name, allocation, preset)
    VALUES (
        create_stack.manager_id, new_stack_id, coalesce(create_stack.revision_id, gen_random_uuid()), 1,
        checked_name, checked_allocation, checked_preset
    );
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id, key_id
    )
    VALUES (
        create_stack.manager_id, new_stack_id, 1, coalesce(create_stack.revision_id, gen_random_uuid()),
        checked_name, checked_allocation, checked_preset,
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
    new_name        text,
    new_allocation  text,
    new_preset      text,
    identity_id     text,
    request_id      text,
    key_id          text
) RETURNS TABLE (stack_id text, revision_id text, name text, allocation text, preset text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    checked_name       stackmgr.stack_name := new_name;
    checked_allocation stackmgr.allocation := new_allocation;
    checked_preset     stackmgr.preset := new_preset;
    updated            stackmgr.stacks;
BEGIN
    EXECUTE '
        UPDATE stackmgr.stacks
        SET
            revision_id = $3,
            revision_number = revision_number + 1,
            name = coalesce($4, name),
            allocation = coalesce($5, allocation),
            preset = coalesce($6, preset)
        WHERE manager_id = $1
            AND stack_id = $2
        RETURNING manager_id, stack_id, revision_id, revision_number, name, allocation, preset, created_at
    '
    INTO updated
    USING update_stack.manager_id, old_stack_id, new_revision_id, checked_name, checked_allocation, checked_preset;
    IF updated.stack_id IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id, key_id
    )
    VALUES (
        updated.manager_id, updated.stack_id, updated.revision_number,
        coalesce(updated.revision_id, gen_random_uuid()),
        updated.name, updated.allocation, updated.preset,
        update_stack.identity_id, left(update_stack.request_id, 255), update_stack.key_id
    );
    stack_id := updated.stack_id;
    revision_id := updated.revision_id;
    name := updated.name;
    allocation := updated.allocation;
    preset := updated.preset;
    RETURN NEXT;
END
$$;

COMMENT ON FUNCTION stackmgr.create_stack(uuid, text, bytea, uuid, uuid, text, text, text, text, text, text) IS
    'Create a stack, its first revision and its receipt; returns no row if the Idempotency-Key has a receipt.';
COMMENT ON FUNCTION stackmgr.update_stack(uuid, uuid, uuid, text, text, text, text, text, text) IS
    'Append a revision to a stack and return it; returns no row if the manager has no such stack.';

GRANT EXECUTE ON FUNCTION stackmgr.create_stack(uuid, text, bytea, uuid, uuid, text, text, text, text, text, text)
    TO stackmgr_app;
GRANT EXECUTE ON FUNCTION stackmgr.update_stack(uuid, uuid, uuid, text, text, text, text, text, text)
    TO stackmgr_app;
