-- stack_update: set the supplied fields of one stack and append the complete result as a revision.
-- params:  manager_id uuid, stack_id uuid, revision_id uuid, name stackmgr.stack_name or null,
--          allocation stackmgr.allocation or null, preset stackmgr.preset or null, identity_id text,
--          request_id text, key_id text or null
-- returns: one row (stack_id, revision_id, name, allocation, preset); no row when there is no such stack
-- index:   stacks_pkey
-- locks:   FOR NO KEY UPDATE on the stack row; concurrent updates of one stack are serialized
-- called by: stacks.repository.update
-- why:     UPDATE reads the row again once it holds the lock, so that omitted fields are copied from the newest
--          committed revision. A join to stack_revisions would read the older snapshot.
WITH updated AS (
    UPDATE stackmgr.stacks
    SET
        revision_id = %(revision_id)s::uuid,
        revision_number = revision_number + 1,
        name = coalesce(%(name)s::stackmgr.stack_name, name),
        allocation = coalesce(%(allocation)s::stackmgr.allocation, allocation),
        preset = coalesce(%(preset)s::stackmgr.preset, preset)
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id = %(stack_id)s::uuid
    RETURNING manager_id, stack_id, revision_number, revision_id, name, allocation, preset
),
revision AS (
    INSERT INTO stackmgr.stack_revisions (
        manager_id, stack_id, revision_number, revision_id, name, allocation, preset, identity_id, request_id,
        key_id
    )
    SELECT
        manager_id,
        stack_id,
        revision_number,
        revision_id,
        name,
        allocation,
        preset,
        %(identity_id)s::text,
        left(%(request_id)s::text, 255),
        %(key_id)s::text
    FROM updated
)
SELECT
    stack_id::text,
    revision_id::text,
    name,
    allocation::text,
    preset
FROM updated;
