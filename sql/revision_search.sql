-- revision_search: return the revision with an id, or those that a request made, of any manager.
-- params:  revision_id uuid or null, request_ids text[] or null, manager_id uuid or null, row_limit integer
-- returns: up to row_limit rows (external_id, manager_id, stack_id, revision_number, revision_id, created_at,
--          request_id)
-- index:   none (every revision is read, or every one of the manager's, for an operator)
-- locks:   none
-- called by: commands.find._by_revision, commands.request.find_revisions
-- why:     an index on either column would cost every write; the search costs a scan, once in a while.
SELECT
    managers.external_id::text,
    managers.manager_id::text,
    stack_revisions.stack_id::text,
    stack_revisions.revision_number,
    stack_revisions.revision_id::text,
    stack_revisions.created_at,
    stack_revisions.request_id
FROM stackmgr.stack_revisions AS stack_revisions
JOIN stackmgr.managers AS managers ON managers.manager_id = stack_revisions.manager_id
WHERE (
    stack_revisions.revision_id = %(revision_id)s::uuid
    OR stack_revisions.request_id = ANY (%(request_ids)s::text[])
)
    AND (%(manager_id)s::uuid IS NULL OR stack_revisions.manager_id = %(manager_id)s::uuid)
ORDER BY stack_revisions.created_at DESC, stack_revisions.revision_id DESC
LIMIT %(row_limit)s::integer;
