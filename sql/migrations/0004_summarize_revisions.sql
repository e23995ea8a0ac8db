-- 0004_summarize_revisions: keep the index of the times of revisions up to date.
--
-- Without autosummarize, a new range of pages is summarised at a vacuum only, which visits the table every million rows.
-- Until then a search of the last hour reads every page since the last vacuum.
--
-- Locks the index, ACCESS EXCLUSIVE, for a moment. The table is not read. A partitioned table has an index for each
-- partition.

SET LOCAL ROLE stackmgr_owner;

DO $$
DECLARE
    found regclass;
BEGIN
    FOR found IN
        SELECT index.oid
        FROM pg_catalog.pg_class AS index
        JOIN pg_catalog.pg_am AS method ON method.oid = index.relam AND method.amname = 'brin'
        WHERE index.relnamespace = 'stackmgr'::regnamespace AND index.relkind = 'i'
    LOOP
        EXECUTE pg_catalog.format('ALTER INDEX %s SET (autosummarize = on)', found);
    END LOOP;
END
$$;
