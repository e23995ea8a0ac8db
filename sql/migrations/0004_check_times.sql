-- 0004_check_times: validate the constraints of the file before.
--
-- Each VALIDATE CONSTRAINT takes a SHARE UPDATE EXCLUSIVE lock on its table and reads it; requests go on. If a row breaks
-- it, correct the row's time and run `stackmgr migrate` again.

SET LOCAL ROLE stackmgr_owner;

ALTER TABLE stackmgr.api_keys VALIDATE CONSTRAINT api_keys_times_have_a_date;
ALTER TABLE stackmgr.managers VALIDATE CONSTRAINT managers_times_have_a_date;
ALTER TABLE stackmgr.manager_holds VALIDATE CONSTRAINT manager_holds_times_have_a_date;
ALTER TABLE stackmgr.stacks VALIDATE CONSTRAINT stacks_times_have_a_date;
