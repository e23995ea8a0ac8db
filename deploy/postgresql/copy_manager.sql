-- Write what a restored copy of the database has of one manager into files, from which recover_manager.sql puts it back:
-- for a DBA, as a login that may assume stackmgr_owner.
--
--     psql -X -d COPY -v manager=MANAGER_ID -v folder=FOLDER -f copy_manager.sql
--
-- One snapshot, which may be that of a standby; the time of its state is printed. The files hold the digests of the
-- manager's keys: run `umask 077` first. managers.tsv is written last: without it, nothing is put back from a folder.

\set ON_ERROR_STOP on

BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;
SET LOCAL ROLE stackmgr_owner;
SET LOCAL search_path = pg_catalog;
SET LOCAL statement_timeout = 0;
SET LOCAL DateStyle = 'ISO';
\encoding UTF8
\cd :folder
\! rm -f managers.tsv

SELECT pg_is_in_recovery() AND concat(
    current_setting('recovery_target'), current_setting('recovery_target_time'), current_setting('recovery_target_xid'),
    current_setting('recovery_target_lsn'), current_setting('recovery_target_name')
) <> '' AS is_recovering \gset
\if :is_recovering
DO $$ BEGIN RAISE EXCEPTION 'the recovery of the copy to its target still runs: wait until it has ended'; END $$;
\endif
SELECT
    pg_last_xact_replay_timestamp() AS recovered_to,
    (SELECT max(created_at) FROM stackmgr.stack_revisions WHERE manager_id = :'manager') AS last_revision_of_manager;

SELECT (SELECT external_id FROM stackmgr.managers WHERE manager_id = :'manager') AS external_id \gset
\if :{?external_id} \else
DO $$ BEGIN RAISE EXCEPTION 'the copy has no manager of this manager id: see stackmgr managers list'; END $$;
\endif

COPY (SELECT * FROM stackmgr.manager_rebindings WHERE manager_id = :'manager') TO STDOUT (HEADER) \g manager_rebindings.tsv
COPY (SELECT * FROM stackmgr.api_keys WHERE external_id = :'external_id') TO STDOUT (HEADER) \g api_keys.tsv
COPY (
    SELECT * FROM stackmgr.api_key_quota_slots
    WHERE quota_id IN (SELECT quota_id FROM stackmgr.api_keys WHERE external_id = :'external_id')
) TO STDOUT (HEADER) \g api_key_quota_slots.tsv
COPY (
    SELECT * FROM stackmgr.api_key_quota_queues
    WHERE quota_id IN (SELECT quota_id FROM stackmgr.api_keys WHERE external_id = :'external_id')
) TO STDOUT (HEADER) \g api_key_quota_queues.tsv
COPY (SELECT * FROM stackmgr.stacks WHERE manager_id = :'manager') TO STDOUT (HEADER) \g stacks.tsv
COPY (SELECT * FROM stackmgr.stack_revisions WHERE manager_id = :'manager') TO STDOUT (HEADER) \g stack_revisions.tsv
COPY (SELECT * FROM stackmgr.creation_receipts WHERE manager_id = :'manager') TO STDOUT (HEADER) \g creation_receipts.tsv
COPY (SELECT * FROM stackmgr.managers WHERE manager_id = :'manager') TO STDOUT (HEADER) \g managers.tsv
COMMIT;
