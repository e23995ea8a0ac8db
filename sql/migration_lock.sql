-- migration_lock: allow one run of migrations at a time; held until the connection ends.
-- params:  none
-- returns: one row (pg_advisory_lock), empty
-- index:   none
-- locks:   advisory lock 4663001; a second run waits for the first, up to its lock_timeout
-- called by: operate.migrations.apply
SELECT pg_advisory_lock(4663001);
