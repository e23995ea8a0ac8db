-- 0006_manager_erasures: the record of managers whose data an operator erased.
--
-- It outlives the manager, so nothing refers to it. No existing table is locked.

SET LOCAL ROLE stackmgr_owner;

CREATE TABLE stackmgr.manager_erasures (
    manager_id   uuid        NOT NULL,
    external_id  uuid        NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT now(),
    begun_by     text        NOT NULL DEFAULT session_user,
    finished_at  timestamptz,
    stacks       bigint      NOT NULL DEFAULT 0,
    revisions    bigint      NOT NULL DEFAULT 0,
    receipts     bigint      NOT NULL DEFAULT 0,
    CONSTRAINT manager_erasures_pkey PRIMARY KEY (manager_id)
);
COMMENT ON TABLE stackmgr.manager_erasures IS
    'One row for each manager erased by stackmgr managers erase: who, when, and how many rows.';
COMMENT ON COLUMN stackmgr.manager_erasures.manager_id IS 'The manager, which no longer exists.';
COMMENT ON COLUMN stackmgr.manager_erasures.external_id IS 'The external id that the manager was bound to.';
COMMENT ON COLUMN stackmgr.manager_erasures.begun_at IS 'When the erasure began and the keys were revoked.';
COMMENT ON COLUMN stackmgr.manager_erasures.begun_by IS 'The login that began it.';
COMMENT ON COLUMN stackmgr.manager_erasures.finished_at IS 'When the last row was deleted; null if interrupted.';
COMMENT ON COLUMN stackmgr.manager_erasures.stacks IS 'How many stacks were deleted.';
COMMENT ON COLUMN stackmgr.manager_erasures.revisions IS 'How many revisions were deleted.';
COMMENT ON COLUMN stackmgr.manager_erasures.receipts IS 'How many creation receipts were deleted.';

GRANT SELECT ON stackmgr.manager_erasures TO stackmgr_reader;
