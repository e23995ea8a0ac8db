-- manager_find: return the saved bindings that share an external id or an identity id with an identity.
-- params:  external_id uuid or null, identity_id text or null
-- returns: up to two rows (manager_id, external_id, identity_id); two, or one that differs, is a conflict
-- index:   managers_external_id_key, managers_identity_id_key
-- locks:   none
-- called by: access.managers.look_up
-- why:     in an order that no index has, so that no kept plan scans an entire index.
SELECT
    manager_id::text,
    external_id::text,
    identity_id
FROM stackmgr.managers AS managers
WHERE external_id = %(external_id)s::uuid
    OR identity_id = %(identity_id)s::text
ORDER BY managers.created_at, managers.manager_id;
