-- batch_begin: let the statements of this transaction wait for a lock only briefly.
-- params:  none
-- returns: one row (lock_timeout)
-- index:   none
-- locks:   none
-- called by: database.round_trips.RoundTrips
-- why:     writes of several requests share a transaction. If one waits for a lock of somebody else, all of them are
--          rolled back and run again alone, with the session's lock_timeout. SET LOCAL as the first statement would
--          warn that there is no transaction block.
SELECT set_config('lock_timeout', '20ms', true) AS lock_timeout;
