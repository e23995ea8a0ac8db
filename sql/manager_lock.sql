-- manager_lock: lock a manager against holds, and against steps of its erasure, in other transactions.
-- params:  manager_id uuid
-- returns: one row (manager_id) for the manager, or for its erasure if that is not finished; otherwise no row
-- index:   managers_pkey, manager_erasures_pkey
-- locks:   FOR UPDATE on the manager's row, then on the record of its erasure; no request locks either
-- called by: operate.erasure.not_held
-- why:     a hold and a step of an erasure take these locks first, and look for a hold with a later snapshot: if they
--          run at the same time, the second sees what the first committed.
WITH manager AS MATERIALIZED (
    SELECT manager_id
    FROM stackmgr.managers
    WHERE manager_id = %(manager_id)s::uuid
    FOR UPDATE
),
erasure AS MATERIALIZED (
    SELECT manager_id
    FROM stackmgr.manager_erasures
    WHERE manager_id = %(manager_id)s::uuid
        AND finished_at IS NULL
    FOR UPDATE
)
SELECT manager_id::text FROM manager
UNION ALL
SELECT manager_id::text FROM erasure;
