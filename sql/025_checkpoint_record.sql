-- Commits a confirmed LSN, before Postgres hears of it. $1 publication, $2 schema and $3 name of the table, $4 slot,
-- $5 epoch, $6 the LSN. One row comes back: the fingerprint now, whether the record moved, and the record as it was.
--
-- The fingerprint is read in this statement, so after the LSN was received: a publication that was changed before it
-- stops the record. An LSN below the recorded one changes nothing: within an epoch the record never goes back.
--
-- The horizon: the snapshot of this statement is older than the insert LSN that it takes, so every transaction older
-- than the snapshot's xmin has its commit below that LSN. Once that LSN is confirmed, all of their rows are.
WITH published AS MATERIALIZED (
    SELECT {fingerprint} AS fingerprint
), moved AS (
    UPDATE walpost.checkpoint c
    SET confirmed_lsn = $6::text::pg_lsn,
        horizon = CASE WHEN c.pending_lsn <= $6::text::pg_lsn THEN c.pending_horizon ELSE c.horizon END,
        pending_horizon = CASE WHEN c.pending_lsn > $6::text::pg_lsn THEN c.pending_horizon
                               ELSE pg_snapshot_xmin(pg_current_snapshot()) END,
        pending_lsn = CASE WHEN c.pending_lsn > $6::text::pg_lsn THEN c.pending_lsn
                           ELSE pg_current_wal_insert_lsn() END,
        updated_at = clock_timestamp()
    FROM published
    WHERE c.slot_name = $4::text
      AND c.epoch = $5::int8
      AND c.state <> 'recovering'
      AND c.fingerprint = published.fingerprint
      AND c.confirmed_lsn <= $6::text::pg_lsn
    RETURNING c.slot_name
)
SELECT published.fingerprint, EXISTS (SELECT FROM moved), c.fingerprint, c.epoch, c.state, c.confirmed_lsn::text
FROM published LEFT JOIN walpost.checkpoint c ON c.slot_name = $4::text
