-- audit_revisions: list the revisions of some managers, in the order of the primary key.
-- params:  after uuid or null, last uuid or null
-- returns: many (manager_id, stack_id, revision_number, revision_id, name, allocation, preset)
-- index:   none (all of the table in the end, by its primary key)
-- locks:   none
-- called by: operate.audit.ranges.audit_range
SELECT
    manager_id::text,
    stack_id::text,
    revision_number,
    revision_id::text,
    name::text,
    allocation::text,
    preset::text
FROM stackmgr.stack_revisions AS stack_revisions
WHERE (%(after)s::uuid IS NULL OR manager_id > %(after)s::uuid)
    AND (%(last)s::uuid IS NULL OR manager_id <= %(last)s::uuid)
ORDER BY stack_revisions.manager_id, stack_revisions.stack_id, stack_revisions.revision_number;
