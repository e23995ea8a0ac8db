-- Distribute the schema over the nodes of a Citus cluster. Run once by a superuser, on the coordinator, after
-- `stackmgr migrate` and `citus_add_node`: see CITUS.md. The tables are distributed in one transaction.
--
--     psql -X -d stackmgr -f citus.sql

\set ON_ERROR_STOP on

BEGIN;

-- The shards of a table share one connection to a node, which sees the changes of this transaction.
SET LOCAL citus.multi_shard_modify_mode = 'sequential';

-- A foreign key between tables that are not distributed alike would be in the way: dropped, and added again below.
ALTER TABLE stackmgr.stack_revisions DROP CONSTRAINT stack_revisions_stack_fkey;
ALTER TABLE stackmgr.creation_receipts DROP CONSTRAINT creation_receipts_stack_fkey;

-- Citus sends the default of created_at to a shard as a value, for which rights to the other columns do not suffice.
GRANT INSERT ON stackmgr.stacks, stackmgr.stack_revisions, stackmgr.creation_receipts TO stackmgr_app;

SELECT create_distributed_table('stackmgr.stacks', 'manager_id');
SELECT create_distributed_table('stackmgr.stack_revisions', 'manager_id', colocate_with => 'stackmgr.stacks');
SELECT create_distributed_table('stackmgr.creation_receipts', 'manager_id', colocate_with => 'stackmgr.stacks');

ALTER TABLE stackmgr.stack_revisions
    ADD CONSTRAINT stack_revisions_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id);
-- Deferred: a receipt is inserted before its stack, by a statement of its own.
ALTER TABLE stackmgr.creation_receipts
    ADD CONSTRAINT creation_receipts_stack_fkey
        FOREIGN KEY (manager_id, stack_id) REFERENCES stackmgr.stacks (manager_id, stack_id)
        DEFERRABLE INITIALLY DEFERRED;

COMMIT;

-- Citus creates the functions on the nodes over connections that wait for an open transaction here.
SELECT create_distributed_function(oid::regprocedure, 'manager_id', colocate_with => 'stackmgr.stacks')
FROM pg_catalog.pg_proc
WHERE pronamespace = 'stackmgr'::regnamespace AND proname IN ('create_stack', 'update_stack');
