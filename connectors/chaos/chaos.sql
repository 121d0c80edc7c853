-- What `highwater chaos` asks of the stores once faults are over: what has not come to its end, and what must never be.

-- Work that was begun or is waited for; all of it is nought when nothing is stuck.
-- name: chaos_unfinished
SELECT what, n FROM (
    SELECT 'rows of the outbox' AS what, count(*) AS n FROM outbox
    UNION ALL SELECT 'rebuilds in flight', count(*) FROM user_stats WHERE in_flight IS NOT NULL
    UNION ALL SELECT 'queries', count(*) FROM pipeline_runs WHERE NOT released
    UNION ALL SELECT 'jobs', count(*) FROM jobs WHERE status IN ('pending', 'running')
    UNION ALL SELECT 'ingests of chunks', count(*) FROM chunk_ingests WHERE status = 'running'
    UNION ALL SELECT 'chunks without a vector', count(*) FROM chunks WHERE embedding IS NULL
    UNION ALL SELECT 'changed pages', count(*) FROM page_changes
) AS counted WHERE n > 0

-- name: chaos_open_losses
SELECT count(*) AS number FROM log_truncations WHERE repaired_at IS NULL

-- How much of each there is, by the names of what was sent.
-- name: chaos_stored
SELECT (SELECT count(*) FROM insights) AS insights,
       (SELECT count(*) FROM pipeline_runs) AS queries,
       (SELECT count(*) FROM jobs) AS jobs,
       (SELECT count(*) FROM chunk_ingests) AS ingests,
       (SELECT count(*) FROM chunks) AS chunks,
       (SELECT count(*) FROM league_matches) AS matches,
       (SELECT count(*) FROM league_matches WHERE finalized_at IS NOT NULL) AS results,
       (SELECT count(*) FROM league_votes) AS votes,
       (SELECT count(*) FROM subscriptions WHERE subscribed) AS subscriptions

-- What must never be, with where it is. $1: errors of work that was lost with the database, as a plan expects them; none: nothing
-- may be lost, and no version of clusters left out.
-- name: chaos_wrong
SELECT 'the sequence of channel ' || c.channel_id || ' is not dense' AS what
FROM channels AS c LEFT JOIN insights AS i USING (channel_id)
GROUP BY c.channel_id, c.current_seq
HAVING count(i.seq) <> c.current_seq OR max(i.seq) <> c.current_seq OR min(i.seq) <> 1
UNION ALL
SELECT 'the mark of user ' || h.user_id || ' is beyond the head of channel ' || h.channel_id
FROM user_cluster_hwm AS h LEFT JOIN channels AS c USING (channel_id) WHERE h.last_seq > COALESCE(c.current_seq, 0)
UNION ALL
SELECT 'a version of the clusters of user ' || user_id || ' is left out' FROM user_clusters
GROUP BY user_id HAVING max(cluster_version) - min(cluster_version) + 1 <> count(*) AND cardinality($1::text[]) = 0
UNION ALL
SELECT 'the order of the queries of user ' || user_id || ' is not dense' FROM pipeline_runs
GROUP BY user_id HAVING max(ordinal) <> count(*) OR min(ordinal) <> 1
UNION ALL
SELECT 'query ' || id || ' is ' || status || ' (' || COALESCE(error, '') || '), its memory ' || COALESCE(archive_status, 'none')
FROM pipeline_runs
WHERE (status <> 'COMPLETED' OR archive_status <> 'STORED') AND (error = ANY ($1::text[])) IS NOT TRUE
UNION ALL
SELECT 'query ' || r.id || ' has ' || count(l.id) || ' answers' FROM pipeline_runs AS r
LEFT JOIN raw_logs AS l ON l.pipeline_run_id = r.id AND l.message_type = 'assistant_response'
WHERE (r.error = ANY ($1::text[])) IS NOT TRUE
GROUP BY r.id HAVING count(l.id) <> 1
UNION ALL
SELECT 'job ' || job_id || ' is ' || status || ' (' || COALESCE(error, '') || ')' FROM jobs WHERE status <> 'completed'
UNION ALL
SELECT 'job ' || j.job_id || ' is counted ' || count(e.seq) || ' times' FROM jobs AS j
LEFT JOIN usage_entries AS e USING (job_id)
WHERE NOT EXISTS (  -- counted before there were entries: the first one is their sum
    SELECT FROM usage_entries AS s
    WHERE s.job_id IS NULL AND s.organization_id = j.organization_id AND s.counted_at >= j.completed_at
)
GROUP BY j.job_id HAVING count(e.seq) <> 1
UNION ALL
SELECT 'the numbers of the usage of ' || organization_id || ' are not dense' FROM usage_entries
JOIN usage_sequences USING (organization_id, period)
GROUP BY organization_id, period, last_seq
HAVING max(seq) <> last_seq OR last_seq <> count(*) + coalesce(max(seq) FILTER (WHERE job_id IS NULL) - 1, 0)
UNION ALL
SELECT 'ingest ' || ingest_id || ' is ' || status FROM chunk_ingests WHERE status NOT IN ('complete', 'superseded')
UNION ALL
SELECT 'partition ' || topic || '/' || partition || ' of ' || "group" || ' is stopped: ' || reason FROM stopped_partitions
UNION ALL
SELECT 'partition ' || topic || '/' || partition || ' lost its tail' FROM log_truncations WHERE repaired_at IS NULL

-- Sends the consumers of a group back, none of which lives.
-- name: chaos_rewind
UPDATE positions SET next = greatest(0, next - $2) WHERE "group" = $1

-- name: chaos_positions
SELECT "group", topic, partition, next FROM positions

-- name: chaos_terminate
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = current_user

-- The statement that sets the time zone $1 and the date style $2 of every later session.
-- name: chaos_region
SELECT format('ALTER ROLE CURRENT_USER SET timezone TO %L; ALTER ROLE CURRENT_USER SET datestyle TO %L', $1::text, $2::text)

-- Whether a standby follows, and has all that it was sent.
-- name: chaos_standby
SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn = sent_lsn)
