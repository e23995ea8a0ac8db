-- migration_lock: let one run of migrations at a time into this database; held until the connection ends.
-- params:  none
-- returns: one row (pg_advisory_lock), which says nothing
-- index:   none
-- locks:   advisory lock 4663001; a second run waits for the first, up to its lock_timeout
-- called by: database.migrations.apply
SELECT pg_advisory_lock(4663001);
