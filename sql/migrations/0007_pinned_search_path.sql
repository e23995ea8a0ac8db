-- 0007_pinned_search_path: the check of an allocation means the same whatever a session's search_path is.
--
-- A path that puts another schema before pg_catalog could replace the functions and operators it uses. The
-- other function of the schema was bound to them when it was created. No table is locked.

SET LOCAL ROLE stackmgr_owner;

ALTER FUNCTION stackmgr.allocation_is_normalised(json) SET search_path = pg_catalog, pg_temp;
