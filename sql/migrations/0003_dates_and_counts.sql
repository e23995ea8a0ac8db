-- 0003_dates_and_counts: no time that a command or a page reads is infinite, before the year 1 or after 9999; the record
-- of an erasure counts keys too.
--
-- Each ALTER TABLE takes an ACCESS EXCLUSIVE lock on its table for a moment, and neither reads nor rewrites a row: the next
-- file validates the constraints. The update locks the keys that it changes, which never expire.

SET LOCAL ROLE stackmgr_owner;

UPDATE stackmgr.api_keys SET expires_at = NULL WHERE expires_at = 'infinity';

ALTER TABLE stackmgr.api_keys ADD CONSTRAINT api_keys_times_have_a_date CHECK (
    least(created_at, expires_at, revoked_at, last_used_at) >= '0001-01-01 00:00:00+00'
    AND greatest(created_at, expires_at, revoked_at, last_used_at) < '10000-01-01 00:00:00+00'
) NOT VALID;
ALTER TABLE stackmgr.managers ADD CONSTRAINT managers_times_have_a_date
    CHECK (created_at >= '0001-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00') NOT VALID;
ALTER TABLE stackmgr.manager_holds ADD CONSTRAINT manager_holds_times_have_a_date CHECK (
    least(held_at, released_at) >= '0001-01-01 00:00:00+00'
    AND greatest(held_at, released_at) < '10000-01-01 00:00:00+00'
) NOT VALID;
ALTER TABLE stackmgr.stacks ADD CONSTRAINT stacks_times_have_a_date
    CHECK (created_at >= '0001-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00') NOT VALID;

ALTER TABLE stackmgr.manager_erasures ADD COLUMN keys bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN stackmgr.manager_erasures.keys IS 'How many API keys were deleted.';
