-- stack_update: set the supplied fields of one stack and append the complete result as a revision, on one node of
--          Citus.
-- params:  manager_id uuid, stack_id uuid, revision_id uuid, name text or null,
--          allocation text or null, preset text or null, identity_id text,
--          request_id text, key_id text or null
-- returns: one row (stack_id, revision_id, name, allocation, preset); no row when there is no such stack
-- index:   none (the function's: stacks_pkey)
-- locks:   FOR NO KEY UPDATE on the stack row; concurrent updates of one stack are serialized
-- called by: stacks.repository.update_operation
-- why:     as for stack_create.
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
    %(name)s::text,
    %(allocation)s::text,
    %(preset)s::text,
    %(identity_id)s::text,
    %(request_id)s::text,
    %(key_id)s::text
);
