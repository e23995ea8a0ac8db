-- stack_list_long_names: return one page of a manager's stacks, as stack_list does, up to page_bytes of names.
-- params:  manager_id uuid, after_created_at timestamptz, after_stack_id uuid, row_limit integer, page_bytes integer
-- returns: up to row_limit rows (stack_id, revision_id, name or null, allocation, preset, used_this_hour, created_at)
-- index:   stacks_page
-- locks:   none
-- called by: stacks.repository.list_page
-- why:     the names of the rows take at most page_bytes. The last row has no name if it is over that: it is
--          on the next page. A name counts as at most page_bytes, so that the first row always has its name.
--          Run only for a page with a long name, and after stack_list, which verifies the key: there, the sum would
--          cost every page 15 in 100.
SELECT
    stack_id::text,
    revision_id::text,
    CASE WHEN bytes <= %(page_bytes)s::integer THEN name::text END AS name,
    allocation::text,
    preset::text,
    true AS used_this_hour,
    created_at
FROM (
    SELECT
        stack_id,
        revision_id,
        name,
        allocation,
        preset,
        created_at,
        name_bytes,
        sum(name_bytes) OVER (ORDER BY created_at DESC, stack_id DESC ROWS UNBOUNDED PRECEDING) AS bytes
    FROM (
        SELECT
            stack_id,
            revision_id,
            name,
            allocation,
            preset,
            created_at,
            least(octet_length(name), %(page_bytes)s::integer) AS name_bytes
        FROM stackmgr.stacks
        WHERE manager_id = %(manager_id)s::uuid
            AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
        ORDER BY created_at DESC, stack_id DESC
        LIMIT %(row_limit)s::integer
    ) AS stacks
) AS page
WHERE bytes - name_bytes <= %(page_bytes)s::integer
ORDER BY page.created_at DESC, page.stack_id DESC;
