-- 0004_revision_keys: record with each revision the API key that made it.
--
-- Nullable, with no default and no constraint: the table is neither rewritten nor scanned, its lock is held
-- for a moment, and the previous release, which leaves the column out, continues to serve. Text, because a
-- remote verifier has key ids of its own form. The application role's INSERT covers the new column.

SET LOCAL ROLE stackmgr_owner;

ALTER TABLE stackmgr.stack_revisions ADD COLUMN key_id text;
COMMENT ON COLUMN stackmgr.stack_revisions.key_id IS
    'The verifier''s id of the API key that made the revision (api_keys.key_id for the database verifier); '
    'null where the verifier gives none, and in revisions older than this column.';
