-- manager_erasure_plan: make this session read the receipts of an erased manager by plain index scans.
-- params:  none
-- returns: one row (set_config)
-- index:   none
-- locks:   none
-- called by: access.erasure.erase
-- why:     each deleted stack looks for receipts below its manager. A plain index scan marks the entries of
--          deleted receipts as dead and passes them over from then on; a bitmap scan reads the rows every time.
SELECT set_config('enable_bitmapscan', 'off', false);
