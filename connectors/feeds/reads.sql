-- `erased_by`: the event that erased the user, the cause of what is empty since.
-- name: read_clusters_head
SELECT floor.value AS floor, held.version, held.etag, held.position, erased.position AS erased_by
FROM version_floor AS floor
LEFT JOIN resource_versions AS held ON held.key = 'clusters:' || $1::text
LEFT JOIN user_erasures AS erased ON erased.user_hash = sha256(convert_to($1::text, 'UTF8'))

-- Everything that decides whether the stored feed is good, and nothing of its payload; one row, one snapshot.
-- name: read_feed_head
SELECT floor.value AS floor,
       clusters.version AS clusters_version, clusters.etag AS clusters_etag, clusters.position AS clusters_position,
       feed.version, feed.etag, feed.position,
       document.cluster_version, document.built_at, document.ttl_seconds, document.form,
       coalesce(stats.cluster_version, 0) AS cluster_version_now, erased.position AS erased_by
FROM version_floor AS floor
LEFT JOIN user_erasures AS erased ON erased.user_hash = sha256(convert_to($1::text, 'UTF8'))
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
SELECT floor.value AS floor, held.version, held.etag, held.position,
       present.cluster_version AS cluster_version_now, coalesce($2::bigint, present.cluster_version) AS cluster_version,
       stored.clusters, stored.noise, stored.updated_at, stored.caused_by, stored.basis_id, stored.left_out,
       stored.outside, stored.redactions, stored.preliminary, stored.regrouped, erased.position AS erased_by
FROM version_floor AS floor
LEFT JOIN user_erasures AS erased ON erased.user_hash = sha256(convert_to($1::text, 'UTF8'))
CROSS JOIN (
    SELECT coalesce((SELECT cluster_version FROM user_stats WHERE user_id = $1::text), 0) AS cluster_version
) AS present
LEFT JOIN resource_versions AS held ON held.key = 'clusters:' || $1::text
LEFT JOIN user_clusters AS stored
       ON stored.user_id = $1::text AND stored.cluster_version = coalesce($2::bigint, present.cluster_version)

-- name: read_died_clusters
SELECT cluster_id, label, cluster_version, related FROM cluster_history
WHERE user_id = $1 AND kind = 'died' AND cluster_version > $2 AND cluster_version <= $3
ORDER BY cluster_version, cluster_id

-- Every change after this version is told; one from before clusters had an identity told none, nor did any before it.
-- name: read_told_since
SELECT CASE WHEN outside IS NULL THEN cluster_version ELSE told_since END FROM user_clusters
WHERE user_id = $1 ORDER BY cluster_version DESC LIMIT 1

-- name: read_cluster_version
SELECT cluster_version FROM user_stats WHERE user_id = $1

-- The clusters of the newest version with that id: one or none.
-- name: read_living_cluster
SELECT one AS cluster, stored.redactions
FROM user_stats AS stats
JOIN user_clusters AS stored ON stored.user_id = stats.user_id AND stored.cluster_version = stats.cluster_version,
LATERAL json_array_elements(stored.clusters) AS one
WHERE stats.user_id = $1 AND one ->> 'cluster_id' = $2

-- What is told last of a cluster, and the version of its birth, null when that is forgotten; no row: never heard of.
-- name: read_cluster_end
SELECT label, (SELECT cluster_version FROM cluster_history
               WHERE user_id = $1 AND cluster_id = $2 AND kind = 'born') AS born_version
FROM cluster_history WHERE user_id = $1 AND cluster_id = $2 ORDER BY cluster_version DESC LIMIT 1

-- $3: the kinds in the order in which those of one version are told; $4 and $5: version and place of the kind to go on after.
-- name: read_cluster_events
SELECT cluster_version, kind, label, size, previous_size, joined, arrived, "left", expired, jaccard, related,
       evolved_at, caused_by, array_position($3::text[], kind) AS place
FROM cluster_history
WHERE user_id = $1 AND cluster_id = $2
  AND (cluster_version, array_position($3::text[], kind)) > ($4::bigint, $5::int)
ORDER BY cluster_version, place LIMIT $6

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

-- `is_changed`: the channels are others than those answered for last, or something of them was retracted since.
-- name: read_user
SELECT plan, last_clustered_at, last_active_at, last_enqueued_at, last_checked_at, cluster_version, in_flight,
       in_flight_until, delayed_at, delay_reason, delays, vectors_awaited_since,
       (last_clustered_at IS NOT NULL OR last_checked_at IS NOT NULL) AND EXISTS (
           SELECT 1
           FROM (SELECT channel_id FROM subscriptions WHERE user_id = $1 AND subscribed) AS s
           FULL JOIN (SELECT channel_id, retractions FROM user_cluster_hwm WHERE user_id = $1 AND is_shown) AS h USING (channel_id)
           LEFT JOIN channels AS c ON c.channel_id = s.channel_id
           WHERE s.channel_id IS NULL OR h.channel_id IS NULL OR c.retractions > h.retractions
       ) AS is_changed
FROM user_stats WHERE user_id = $1

-- name: read_demand
SELECT position, demanded_at, outcome, reason, cluster_version, request_position, finished_at
FROM rebuild_demands WHERE user_id = $1 AND position = $2

-- name: read_demands
SELECT position, demanded_at, outcome, reason, cluster_version, request_position, finished_at
FROM rebuild_demands WHERE user_id = $1 ORDER BY revision DESC, position LIMIT $2

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
-- The text is cut: a summary takes sentences, and a feed shows beginnings. `retracted`: of the cluster's, how many were.
-- name: read_insights_of_feed
SELECT cluster, insight_id, channel_id, ts, text, url, is_representative, retracted FROM (
    SELECT asked.cluster, i.insight_id, i.channel_id, i.ts, left(i.text, 1000) AS text, i.url, i.retracted_at,
           i.insight_id = ANY ($3::text[]) AS is_representative,
           count(i.retracted_at) OVER (PARTITION BY asked.cluster) AS retracted,
           row_number() OVER (
               PARTITION BY asked.cluster ORDER BY i.retracted_at IS NOT NULL, i.ts DESC, i.insight_id
           ) AS place
    FROM unnest($1::int[], $2::text[]) AS asked (cluster, insight_id)
    JOIN insights AS i ON i.insight_id = asked.insight_id
) AS ranked
WHERE retracted_at IS NULL AND (place <= $4 OR is_representative)
ORDER BY cluster, place

-- name: read_positions
SELECT p."group", p.topic, p.partition, p.next FROM positions AS p
JOIN unnest($1::text[], $2::text[], $3::int[]) AS asked ("group", topic, partition)
  ON p."group" = asked."group" AND p.topic = asked.topic AND p.partition = asked.partition

-- Held until the end of the transaction: an erasure of the user and a retraction of what is in the version wait; one that went
-- before leaves no row. $3 how many retractions there were when the feed was made
-- name: hold_clusters
SELECT 1 FROM user_clusters WHERE user_id = $1 AND cluster_version = $2 AND redactions = $3 FOR SHARE

-- name: store_feed
INSERT INTO feed_documents AS held (user_id, cluster_version, built_at, ttl_seconds, payload, stale, form)
VALUES ($1, $2, $3, $4, $5, false, $6)
ON CONFLICT (user_id) DO UPDATE SET
    cluster_version = excluded.cluster_version, built_at = excluded.built_at, ttl_seconds = excluded.ttl_seconds,
    payload = excluded.payload, stale = false, form = excluded.form
WHERE held.cluster_version <= excluded.cluster_version
RETURNING 1

-- name: is_user_known
SELECT EXISTS (SELECT FROM user_stats WHERE user_id = $1)
