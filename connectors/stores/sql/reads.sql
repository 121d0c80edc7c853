-- name: read_clusters_head
SELECT floor.value AS floor, held.version, held.etag, held.position
FROM version_floor AS floor LEFT JOIN resource_versions AS held ON held.key = 'clusters:' || $1::text

-- Everything that decides whether the stored feed is good, and nothing of its payload; one row, one snapshot.
-- name: read_feed_head
SELECT floor.value AS floor,
       clusters.version AS clusters_version, clusters.etag AS clusters_etag, clusters.position AS clusters_position,
       feed.version, feed.etag, feed.position,
       document.cluster_version, document.built_at, document.ttl_seconds,
       coalesce(stats.cluster_version, 0) AS cluster_version_now
FROM version_floor AS floor
LEFT JOIN resource_versions AS clusters ON clusters.key = 'clusters:' || $1::text
LEFT JOIN resource_versions AS feed ON feed.key = 'feed:' || $1::text
LEFT JOIN feed_documents AS document ON document.user_id = $1::text
LEFT JOIN user_stats AS stats ON stats.user_id = $1::text

-- name: read_feed_payload
SELECT document.payload, feed.version
FROM feed_documents AS document JOIN resource_versions AS feed ON feed.key = 'feed:' || $1::text
WHERE document.user_id = $1::text

-- $2: a cluster version, or null for the current one.
-- name: read_clusters
SELECT floor.value AS floor, held.version, held.etag, held.position, wanted.cluster_version AS cluster_version,
       stored.clusters, stored.noise, stored.updated_at, stored.caused_by
FROM version_floor AS floor
CROSS JOIN (
    SELECT coalesce($2::bigint, (SELECT cluster_version FROM user_stats WHERE user_id = $1::text), 0) AS cluster_version
) AS wanted
LEFT JOIN resource_versions AS held ON held.key = 'clusters:' || $1::text
LEFT JOIN user_clusters AS stored ON stored.user_id = $1::text AND stored.cluster_version = wanted.cluster_version

-- R0.12: over the current subscriptions, never negative.
-- name: read_pending
SELECT s.channel_id, coalesce(c.current_seq, 0) - coalesce(h.last_seq, 0) AS pending
FROM subscriptions AS s
LEFT JOIN channels AS c ON c.channel_id = s.channel_id
LEFT JOIN user_cluster_hwm AS h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
WHERE s.user_id = $1 AND s.subscribed
ORDER BY s.channel_id

-- name: read_pending_sum
SELECT coalesce(sum(greatest(0, coalesce(c.current_seq, 0) - coalesce(h.last_seq, 0))), 0)::bigint
FROM subscriptions AS s
LEFT JOIN channels AS c ON c.channel_id = s.channel_id
LEFT JOIN user_cluster_hwm AS h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
WHERE s.user_id = $1 AND s.subscribed

-- name: read_user
SELECT plan, last_clustered_at, last_active_at, last_enqueued_at, last_checked_at, cluster_version, in_flight,
       in_flight_until
FROM user_stats WHERE user_id = $1

-- name: read_subscriptions
SELECT channel_id FROM subscriptions WHERE user_id = $1 AND subscribed AND channel_id > $2 ORDER BY channel_id LIMIT $3

-- name: read_channel
SELECT c.channel_id, c.current_seq, c.last_insight_ts, i.source_partition, i.source_offset
FROM channels AS c LEFT JOIN insights AS i ON i.channel_id = c.channel_id AND i.seq = c.current_seq
WHERE c.channel_id = $1

-- name: read_channels
SELECT channel_id, current_seq, last_insight_ts FROM channels WHERE channel_id > $1 ORDER BY channel_id LIMIT $2

-- name: read_insight
SELECT insight_id, channel_id, seq, ts, arrived_at, text, url, embedding_model, retracted_at, excluded_at,
       source_partition, source_offset
FROM insights WHERE insight_id = $1 AND channel_id = $2

-- $1 and $2: for each insight its cluster's place and its id; $3 representatives; $4 how many of the newest a cluster.
-- The text is cut: a summary takes sentences, and a feed shows beginnings.
-- name: read_insights_of_feed
SELECT cluster, insight_id, channel_id, ts, text, url, is_representative FROM (
    SELECT asked.cluster, i.insight_id, i.channel_id, i.ts, left(i.text, 1000) AS text, i.url,
           i.insight_id = ANY ($3::text[]) AS is_representative,
           row_number() OVER (PARTITION BY asked.cluster ORDER BY i.ts DESC, i.insight_id) AS place
    FROM unnest($1::int[], $2::text[]) AS asked (cluster, insight_id)
    JOIN insights AS i ON i.insight_id = asked.insight_id
    WHERE i.retracted_at IS NULL
) AS ranked
WHERE place <= $4 OR is_representative
ORDER BY cluster, place

-- name: read_positions
SELECT p."group", p.topic, p.partition, p.next FROM positions AS p
JOIN unnest($1::text[], $2::text[], $3::int[]) AS asked ("group", topic, partition)
  ON p."group" = asked."group" AND p.topic = asked.topic AND p.partition = asked.partition

-- name: feed_build_lock
SELECT pg_try_advisory_lock(hashtextextended('feed:' || $1::text, 0))

-- name: feed_build_unlock
SELECT pg_advisory_unlock(hashtextextended('feed:' || $1::text, 0))

-- Held until the end of the transaction: an erasure of the user waits, and one that went before leaves no row.
-- name: hold_clusters
SELECT 1 FROM user_clusters WHERE user_id = $1 AND cluster_version = $2 FOR KEY SHARE

-- name: store_feed
INSERT INTO feed_documents AS held (user_id, cluster_version, built_at, ttl_seconds, payload, stale)
VALUES ($1, $2, $3, $4, $5, false)
ON CONFLICT (user_id) DO UPDATE SET
    cluster_version = excluded.cluster_version, built_at = excluded.built_at, ttl_seconds = excluded.ttl_seconds,
    payload = excluded.payload, stale = false
WHERE held.cluster_version <= excluded.cluster_version
RETURNING 1
