-- receipt_count_naming: count the creations that named one of some tokens.
-- params:  addresses text[]
-- returns: one row (receipts)
-- index:   none (every revision is read, for an operator)
-- locks:   none
-- called by: commands.tokens._impact_document
-- why:     the retry of such a creation is validated before its receipt is found: without the token it is 400.
SELECT count(stack_revisions.revision_number) AS receipts
FROM stackmgr.stack_revisions AS stack_revisions
WHERE stack_revisions.revision_number = 1
    AND EXISTS (
        SELECT FROM unnest(%(addresses)s::text[]) AS wanted (address)
        WHERE strpos(stack_revisions.allocation::text, wanted.address) > 0
    );
