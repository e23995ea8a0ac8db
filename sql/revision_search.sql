-- revision_search: return the revision with an id, or those that a request made, of any manager.
-- params:  revision_id uuid or null, request_ids text[] or null, manager_id uuid or null, row_limit integer
-- returns: up to row_limit rows (external_id, manager_id, stack_id, revision_number, revision_id, created_at,
--          request_id)
-- index:   none (every revision is read, or every one of the manager's, for an operator)
-- locks:   none
-- called by: commands.find._by_revision, commands.request.find_revisions
-- why:     an index on either column would cost every write; the search costs a scan, once in a while.
--          Citus joins the rows of other nodes with a table of its own only once it has them.
WITH found AS MATERIALIZED (
    SELECT manager_id, stack_id, revision_number, revision_id, created_at, request_id
    FROM stackmgr.stack_revisions AS stack_revisions
    WHERE (revision_id = %(revision_id)s::uuid OR request_id = ANY (%(request_ids)s::text[]))
        AND (%(manager_id)s::uuid IS NULL OR manager_id = %(manager_id)s::uuid)
    ORDER BY stack_revisions.created_at DESC, stack_revisions.revision_id DESC
    LIMIT %(row_limit)s::integer
)
SELECT
    managers.external_id::text,
    found.manager_id::text,
    found.stack_id::text,
    found.revision_number,
    found.revision_id::text,
    found.created_at,
    found.request_id
FROM found
JOIN stackmgr.managers AS managers ON managers.manager_id = found.manager_id
ORDER BY found.created_at DESC, found.revision_id DESC;
