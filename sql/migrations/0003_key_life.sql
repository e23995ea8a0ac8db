-- 0003_key_life: quotas of keys, their last use, their succession, and the record of rebound managers.

SET LOCAL ROLE stackmgr_owner;

ALTER TABLE stackmgr.api_keys
    ADD COLUMN quota_id      uuid,
    ADD COLUMN quota_limit   integer,
    ADD COLUMN quota_seconds integer,
    ADD COLUMN last_used_at  timestamptz,
    ADD COLUMN successor_id  uuid,
    ADD CONSTRAINT api_keys_quota_is_whole CHECK (num_nulls(quota_id, quota_limit, quota_seconds) IN (0, 3)),
    ADD CONSTRAINT api_keys_quota_limit_is_bounded CHECK (quota_limit BETWEEN 1 AND 10000),
    ADD CONSTRAINT api_keys_quota_seconds_is_bounded CHECK (quota_seconds BETWEEN 1 AND 86400),
    ADD CONSTRAINT api_keys_successor_id_fkey FOREIGN KEY (successor_id) REFERENCES stackmgr.api_keys (key_id);
COMMENT ON COLUMN stackmgr.api_keys.quota_id IS
    'Whose slots are used: a key that was rotated and its successor share them.';
COMMENT ON COLUMN stackmgr.api_keys.last_used_at IS
    'The hour, in UTC, of the last use that was noticed; written at most once an hour, by no request.';

-- A quota of N in some seconds is N rows. Each can be taken again once those seconds have passed since it
-- was last taken, so that no span of that length ever holds more than N grants, and none is refused that
-- would not exceed N. Rows are only ever updated in place: no index covers granted_at, and half of each
-- page is left for the versions of a row, which stay HOT.
CREATE TABLE stackmgr.api_key_quota_slots (
    quota_id    uuid        NOT NULL,
    slot        integer     NOT NULL,
    granted_at  timestamptz NOT NULL DEFAULT 'epoch',
    CONSTRAINT api_key_quota_slots_pkey PRIMARY KEY (quota_id, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE stackmgr.api_key_quota_slots IS
    'When each request that a quota allows was last granted.';

CREATE TABLE stackmgr.manager_rebindings (
    manager_id        uuid        NOT NULL,
    rebound_at        timestamptz NOT NULL DEFAULT now(),
    rebound_by        text        NOT NULL DEFAULT session_user,
    old_external_id   uuid        NOT NULL,
    old_identity_id   text        NOT NULL COLLATE "C",
    new_external_id   uuid        NOT NULL,
    new_identity_id   text        NOT NULL COLLATE "C",
    CONSTRAINT manager_rebindings_pkey PRIMARY KEY (manager_id, rebound_at),
    CONSTRAINT manager_rebindings_manager_id_fkey
        FOREIGN KEY (manager_id) REFERENCES stackmgr.managers (manager_id)
);
COMMENT ON TABLE stackmgr.manager_rebindings IS
    'Append-only: which manager was given to which other identity, by whom.';

GRANT UPDATE (last_used_at) ON stackmgr.api_keys TO stackmgr_app;
GRANT SELECT ON stackmgr.api_key_quota_slots TO stackmgr_app;
GRANT UPDATE (granted_at) ON stackmgr.api_key_quota_slots TO stackmgr_app;
