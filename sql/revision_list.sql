-- revision_list: list the revisions of one stack, newest first, with the key that made each.
-- params:  manager_id uuid, stack_id uuid, newest integer, not_after timestamptz, row_limit integer
-- returns: up to row_limit rows (revision_number, revision_id, created_at, name, allocation, preset,
--          identity_id, key_id or null, key_label or null, key_last_four or null, request_id)
-- index:   stack_revisions_pkey, api_keys_key_id_key
-- locks:   none
-- called by: commands.revisions.revisions
-- why:     key_id is the text of a remote verifier, or the UUID of a key in api_keys.
SELECT
    stack_revisions.revision_number,
    stack_revisions.revision_id::text,
    stack_revisions.created_at,
    stack_revisions.name::text,
    stack_revisions.allocation::text,
    stack_revisions.preset::text,
    stack_revisions.identity_id,
    stack_revisions.key_id,
    api_keys.label AS key_label,
    api_keys.last_four AS key_last_four,
    stack_revisions.request_id
FROM stackmgr.stack_revisions AS stack_revisions
LEFT JOIN LATERAL (
    SELECT label, last_four
    FROM stackmgr.api_keys AS api_keys
    WHERE api_keys.key_id = CASE
        WHEN stack_revisions.key_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
            THEN stack_revisions.key_id::uuid
    END
    LIMIT 1
) AS api_keys ON true
WHERE stack_revisions.manager_id = %(manager_id)s::uuid
    AND stack_revisions.stack_id = %(stack_id)s::uuid
    AND stack_revisions.revision_number <= %(newest)s::integer
    AND stack_revisions.created_at <= %(not_after)s::timestamptz
ORDER BY stack_revisions.revision_number DESC
LIMIT %(row_limit)s::integer;
