-- stack_list_holding: list the stacks of any manager whose current allocation names one of some tokens.
-- params:  addresses text[], manager_id uuid or null, row_limit integer
-- returns: up to row_limit rows (external_id, stack_id, name, allocation)
-- index:   none (every stack is read, or every one of the manager's, for an operator)
-- locks:   none
-- called by: commands.tokens._impact_document, commands.find._by_token
-- why:     an address has a fixed length and cannot be a part of another text of an allocation, so that a
--          search for it is a test, and costs a fifth of parsing the JSON. The page is ordered by the text of
--          both columns: by the columns themselves, the planner would follow the order of the index through the
--          whole table, three times as slow for a rare token; by one record of both, Citus fails (22P02). Each
--          parallel worker sorts its own part.
WITH page AS MATERIALIZED (
    SELECT manager_id, stack_id, name::text, allocation::text
    FROM stackmgr.stacks
    WHERE EXISTS (
        SELECT FROM unnest(%(addresses)s::text[]) AS wanted (address)
        WHERE strpos(allocation::text, wanted.address) > 0
    )
        AND (%(manager_id)s::uuid IS NULL OR manager_id = %(manager_id)s::uuid)
    ORDER BY manager_id::text, stack_id::text
    LIMIT %(row_limit)s::integer
)
SELECT
    managers.external_id::text,
    page.stack_id::text,
    page.name,
    page.allocation
FROM page
JOIN stackmgr.managers AS managers ON managers.manager_id = page.manager_id
ORDER BY page.manager_id, page.stack_id;
