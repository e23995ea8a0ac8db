-- 0009_key_digest_hash: find a key by two pages instead of four, however many keys there are.
--
-- Every request looks for its key. The primary key has three levels from some 20,000 keys on; a hash index has one
-- page for each value. It is written when a key is issued, by no request. Issuing keys and recording their last use
-- wait while it is built (reads do not): a second for a million keys.

SET LOCAL ROLE stackmgr_owner;

CREATE INDEX api_keys_key_digest_hash ON stackmgr.api_keys USING hash (key_digest);
