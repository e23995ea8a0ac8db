-- revision_list: list the revisions of one stack, newest first, with the key that made each.
-- params:  manager_id uuid, stack_id uuid, newest integer, not_after timestamptz, row_limit integer
-- returns: up to row_limit rows (revision_number, revision_id, created_at, name, allocation, preset,
--          identity_id, key_id or null, key_label or null, key_last_four or null, request_id)
-- index:   stack_revisions_pkey, api_keys_key_id_key
-- locks:   none
-- called by: commands.revisions.revisions
-- why:     key_id is the text of a remote verifier, or the UUID of a key in api_keys. The join is
--          outside for the reason of revision_search.
WITH revisions AS MATERIALIZED (
    SELECT
        revision_number,
        revision_id::text,
        created_at,
        name::text,
        allocation::text,
        preset::text,
        identity_id,
        key_id,
        request_id
    FROM stackmgr.stack_revisions AS stack_revisions
    WHERE manager_id = %(manager_id)s::uuid
        AND stack_id = %(stack_id)s::uuid
        AND revision_number <= %(newest)s::integer
        AND created_at <= %(not_after)s::timestamptz
    ORDER BY stack_revisions.revision_number DESC
    LIMIT %(row_limit)s::integer
)
SELECT
    revisions.revision_number,
    revisions.revision_id,
    revisions.created_at,
    revisions.name,
    revisions.allocation,
    revisions.preset,
    revisions.identity_id,
    revisions.key_id,
    api_keys.label AS key_label,
    api_keys.last_four AS key_last_four,
    revisions.request_id
FROM revisions
LEFT JOIN LATERAL (
    SELECT label, last_four
    FROM stackmgr.api_keys AS api_keys
    WHERE api_keys.key_id = CASE
        WHEN revisions.key_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
            THEN revisions.key_id::uuid
    END
    LIMIT 1
) AS api_keys ON true
ORDER BY revisions.revision_number DESC;
