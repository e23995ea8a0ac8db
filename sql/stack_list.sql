-- stack_list: return one page of a manager's stacks, newest first, strictly after a position, without long names, if the
--          caller's key is valid.
-- params:  manager_id uuid, external_id uuid, identity_id text, key_digest bytea or null, name_bytes integer,
--          after_created_at timestamptz, after_stack_id uuid, row_limit integer
-- returns: up to row_limit rows (stack_id or null, revision_id, name or null, allocation, preset,
--          used_this_hour, created_at), or one with nulls when the page is empty; no row when stackmgr.caller has none
-- index:   managers_pkey or managers_external_id_key or managers_identity_id_key, api_keys_key_digest_hash,
--          stacks_page
-- locks:   none
-- called by: stacks.repository.list_operation
-- why:     the first page starts after the greatest possible position, so that all pages share one statement
--          and one plan. The row comparison is one index condition. In ORDER BY, an unqualified stack_id
--          would be the output column, which is text and not in the index. A name longer than name_bytes is
--          null, so that the stacks of any page fit it with their names: stack_list_long_names reads every other page. A long name is not fetched from its TOAST table for its length.
SELECT
    page.stack_id::text,
    page.revision_id::text,
    CASE WHEN octet_length(page.name) <= %(name_bytes)s::integer THEN page.name::text END AS name,
    page.allocation::text,
    page.preset::text,
    caller.used_this_hour,
    page.created_at
FROM stackmgr.caller(
    %(manager_id)s::uuid, %(external_id)s::uuid, %(identity_id)s::text, %(key_digest)s::bytea
) AS caller
LEFT JOIN LATERAL (
    SELECT stack_id, revision_id, name, allocation, preset, created_at
    FROM stackmgr.stacks AS stacks
    WHERE manager_id = %(manager_id)s::uuid
        AND (created_at, stack_id) < (%(after_created_at)s::timestamptz, %(after_stack_id)s::uuid)
    ORDER BY stacks.created_at DESC, stacks.stack_id DESC
    LIMIT %(row_limit)s::integer
) AS page ON true;
