-- 0008_quota_queues: a large quota has 100 slots, each of which stands for several grants.
--
-- A request looks at all slots of a nearly spent quota, so their number is bounded. No existing table is locked.
-- A quota of an earlier release keeps its slots, one for each grant.

SET LOCAL ROLE stackmgr_owner;

-- The primary key never changes and half of each page is left for the versions of a row, which stay HOT.
CREATE TABLE stackmgr.api_key_quota_queues (
    quota_id    uuid           NOT NULL,
    slot        integer        NOT NULL,
    granted_at  timestamptz[]  NOT NULL,
    CONSTRAINT api_key_quota_queues_pkey PRIMARY KEY (quota_id, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE stackmgr.api_key_quota_queues IS
    'The grants of each slot of a quota of more than 100; such a slot is taken again when its oldest grant may be.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.quota_id IS 'Quota, as in api_key_quota_slots.quota_id.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.slot IS 'Number of the slot.';
COMMENT ON COLUMN stackmgr.api_key_quota_queues.granted_at IS
    'When each request that the slot allows was last granted, oldest first.';

COMMENT ON COLUMN stackmgr.api_key_quota_slots.slot IS 'Number of the slot, from 1.';
COMMENT ON COLUMN stackmgr.api_key_quota_slots.granted_at IS
    'Oldest grant of the slot; free again quota_seconds later.';

GRANT SELECT ON stackmgr.api_key_quota_queues TO stackmgr_app, stackmgr_reader;
GRANT UPDATE (granted_at) ON stackmgr.api_key_quota_queues TO stackmgr_app;
