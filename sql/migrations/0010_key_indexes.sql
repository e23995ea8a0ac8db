-- 0010_key_indexes: find the keys of an account, and the predecessor of a key, without reading every key.
--
-- Erasing a manager needs both: it revokes and deletes the keys of an account, and PostgreSQL looks for the
-- predecessor of each key that it deletes. Beside a million keys, deleting a hundred took 9.5 s without the second
-- index and 3 ms with it. No request uses these indexes. Issuing keys and recording their last use wait while they
-- are built (reads do not): a second for a million keys.

SET LOCAL ROLE stackmgr_owner;

CREATE INDEX api_keys_external_id ON stackmgr.api_keys (external_id);
CREATE INDEX api_keys_successor_id ON stackmgr.api_keys (successor_id) WHERE successor_id IS NOT NULL;
