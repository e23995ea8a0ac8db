-- stack_get: return the current state of one stack, if the caller's key is valid.
-- params:  manager_id uuid, external_id uuid, identity_id text, key_digest bytea or null, stack_id uuid
-- returns: one row (stack_id or null, revision_id, name, allocation, preset, used_this_hour), with nulls when there is no
--          such stack; no row when stackmgr.caller has none
-- index:   managers_pkey or managers_external_id_key or managers_identity_id_key, api_keys_key_digest_hash,
--          stacks_pkey
-- locks:   none
-- called by: stacks.repository.get_operation
-- why:     the row distinguishes a missing stack from a rejected key without a second statement. The stack is found by the
--          parameter, not by a join, so that no kept plan reads other stacks.
SELECT
    stacks.stack_id::text,
    stacks.revision_id::text,
    stacks.name::text,
    stacks.allocation::text,
    stacks.preset::text,
    caller.used_this_hour
FROM stackmgr.caller(
    %(manager_id)s::uuid, %(external_id)s::uuid, %(identity_id)s::text, %(key_digest)s::bytea
) AS caller
LEFT JOIN stackmgr.stacks AS stacks
    ON stacks.manager_id = %(manager_id)s::uuid
    AND stacks.stack_id = %(stack_id)s::uuid;
