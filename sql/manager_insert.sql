-- manager_insert: save the binding of a manager's first authenticated request.
-- params:  manager_id uuid, external_id uuid, identity_id text
-- returns: one row (manager_id) when the binding is new; no row when either half is already bound
-- index:   none (each unique index of the table is an arbiter)
-- locks:   waits for another transaction that binds either half
-- called by: access.managers.bind
INSERT INTO stackmgr.managers (manager_id, external_id, identity_id)
VALUES (%(manager_id)s::uuid, %(external_id)s::uuid, %(identity_id)s::text)
ON CONFLICT DO NOTHING
RETURNING manager_id::text;
