-- stack_update: set the supplied fields of one stack and append the complete result as a revision, on one node of
--          Citus.
-- params:  manager_id uuid, stack_id uuid, revision_id uuid, name stackmgr.stack_name or null,
--          allocation stackmgr.allocation or null, preset stackmgr.preset or null, identity_id text,
--          request_id text, key_id text or null
-- returns: one row (stack_id, revision_id, name, allocation, preset); no row when there is no such stack
-- index:   none (the function's: stacks_pkey)
-- locks:   FOR NO KEY UPDATE on the stack row; concurrent updates of one stack are serialized
-- called by: stacks.repository.update
-- why:     as for stack_create. deploy/citus.sql creates the function.
SELECT
    stack_id,
    revision_id,
    name,
    allocation,
    preset
FROM stackmgr.update_stack(
    %(manager_id)s::uuid,
    %(stack_id)s::uuid,
    %(revision_id)s::uuid,
    %(name)s::stackmgr.stack_name,
    %(allocation)s::stackmgr.allocation,
    %(preset)s::stackmgr.preset,
    %(identity_id)s::text,
    %(request_id)s::text,
    %(key_id)s::text
);
