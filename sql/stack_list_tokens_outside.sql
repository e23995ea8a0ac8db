-- stack_list_tokens_outside: which tokens current configurations hold that are not on a list, and how often.
-- params:  addresses text[]
-- returns: many (token_address, stacks)
-- index:   none (the whole table, of all managers, for an operator's eyes)
-- locks:   none
-- called by: stacks.list_tokens_outside
-- why:     asked before a smaller whitelist is put to use, and by no request.
SELECT
    item.token_address,
    count(item.token_address) AS stacks
FROM stackmgr.stacks AS stacks
CROSS JOIN LATERAL json_to_recordset(stacks.allocation) AS item (token_address text)
WHERE item.token_address <> ALL (%(addresses)s::text[])
GROUP BY item.token_address
ORDER BY item.token_address;
