-- 0011_no_manager_lock: a create no longer locks its manager's row.
--
-- Each create checked the foreign key from its stack to its manager by FOR KEY SHARE. Of several creates of one
-- manager at a time, each lock is a new multixact, and each create writes the manager's page: 16 clients made 1.24
-- multixact members for each create on PostgreSQL 18, 1.39 on 15; without the constraint none.
--
-- What it protected: a create uses the manager that it has just read, and nothing but `stackmgr managers erase`
-- deletes one. That command deletes the binding first, then waits for longer than a request can run, deletes the
-- rows, and checks in its last transaction that none is left. `stackmgr audit` reports rows without a manager.
-- Both releases work with and without the constraint, but for the new release's erase, which it rejects.

SET LOCAL ROLE stackmgr_owner;

ALTER TABLE stackmgr.stacks DROP CONSTRAINT IF EXISTS stacks_manager_id_fkey;
