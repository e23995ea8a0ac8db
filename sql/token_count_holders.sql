-- token_count_holders: count the stacks and managers that hold each of some tokens, with the weights.
-- params:  addresses text[]
-- returns: many (token_address, stacks, managers, weight_bps): the sum of the weights
-- index:   none (every stack is read, for an operator)
-- locks:   none
-- called by: commands.tokens._impact_document
SELECT
    item.token_address,
    count(item.token_address) AS stacks,
    count(DISTINCT stacks.manager_id) AS managers,
    sum(item.weight_bps) AS weight_bps
FROM stackmgr.stacks AS stacks
CROSS JOIN LATERAL json_to_recordset(stacks.allocation) AS item (token_address text, weight_bps integer)
WHERE item.token_address = ANY (%(addresses)s::text[])
    AND EXISTS (
        SELECT FROM unnest(%(addresses)s::text[]) AS wanted (address)
        WHERE strpos(stacks.allocation::text, wanted.address) > 0
    )
GROUP BY item.token_address
ORDER BY item.token_address;
