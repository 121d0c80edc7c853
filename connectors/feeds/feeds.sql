-- name: ensure_channels
INSERT INTO channels (channel_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: lock_channels
SELECT channel_id, current_seq FROM channels WHERE channel_id = ANY ($1::text[]) ORDER BY channel_id FOR UPDATE

-- name: known_insights
SELECT insight_id, channel_id FROM insights WHERE insight_id = ANY ($1::text[])

-- name: advance_channels
UPDATE channels AS c
SET current_seq = a.head,
    last_insight_ts = GREATEST(c.last_insight_ts, a.ts),
    last_arrived_at = GREATEST(c.last_arrived_at, a.arrived_at)
FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS a (channel_id, head, ts, arrived_at)
WHERE c.channel_id = a.channel_id

-- name: take_early_retractions
DELETE FROM early_retractions WHERE insight_id = ANY ($1::text[]) RETURNING insight_id, channel_id, retracted_at

-- name: retract_insights
UPDATE insights AS i SET retracted_at = COALESCE(i.retracted_at, r.at)
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS r (insight_id, channel_id, at)
WHERE i.insight_id = r.insight_id AND i.channel_id = r.channel_id

-- name: remember_retractions
INSERT INTO early_retractions (insight_id, channel_id, retracted_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[]) ON CONFLICT DO NOTHING

-- name: erase_hwm
DELETE FROM user_cluster_hwm WHERE user_id = $1

-- name: erase_clusters
DELETE FROM user_clusters WHERE user_id = $1

-- name: erase_history
DELETE FROM cluster_history WHERE user_id = $1

-- name: erase_feed
DELETE FROM feed_documents WHERE user_id = $1

-- name: heads_of_channels
SELECT channel_id, current_seq FROM channels WHERE channel_id = ANY ($1::text[])

-- name: subscribers_page
SELECT user_id FROM subscriptions
WHERE channel_id = $1 AND subscribed AND user_id > $2 ORDER BY user_id LIMIT $3

-- name: announce_channels
UPDATE channels AS c SET announced_seq = GREATEST(c.announced_seq, a.head)
FROM unnest($1::text[], $2::bigint[]) AS a (channel_id, head)
WHERE c.channel_id = a.channel_id AND c.announced_seq < a.head

-- name: rebuild_user
SELECT cluster_version, plan, last_active_at, last_clustered_at, last_checked_at, last_enqueued_at, last_request
FROM user_stats WHERE user_id = $1

-- name: rebuild_channels
SELECT s.channel_id, COALESCE(c.current_seq, 0) AS head, COALESCE(h.last_seq, 0) AS hwm,
       (SELECT min(i.seq) FROM insights i
        WHERE i.channel_id = s.channel_id AND i.embedding IS NULL AND i.excluded_at IS NULL
          AND (i.next_embedding IS NULL OR i.next_model IS DISTINCT FROM (SELECT basis_id FROM active_basis))) AS first_unembedded
FROM subscriptions s
LEFT JOIN channels c USING (channel_id)
LEFT JOIN user_cluster_hwm h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
WHERE s.user_id = $1 AND s.subscribed ORDER BY s.channel_id

-- name: rebuild_insights
SELECT * FROM (
    SELECT i.insight_id, i.channel_id, i.seq, i.ts, left(i.text, $6) AS text, i.embedding,
           i.embedding_model, i.next_embedding, i.next_model, count(*) OVER () AS total
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS s (channel_id, hwm, upto)
    JOIN insights i ON i.channel_id = s.channel_id AND i.seq <= s.upto
         AND (i.seq > s.hwm OR (i.ts >= $4 AND i.ts <= $5))
    WHERE (i.embedding IS NOT NULL OR i.next_embedding IS NOT NULL) AND i.retracted_at IS NULL AND i.excluded_at IS NULL
    ORDER BY i.ts DESC, i.insight_id LIMIT $7
) AS newest ORDER BY channel_id, seq

-- name: last_clusters
SELECT hwm, updated_at FROM user_clusters WHERE user_id = $1 AND cluster_version = $2

-- name: last_version
SELECT clusters, outside, neighbours, basis_id FROM user_clusters WHERE user_id = $1 AND cluster_version = $2

-- name: has_retractions_since
SELECT EXISTS (SELECT 1 FROM insights WHERE channel_id = ANY ($1::text[]) AND retracted_at >= $2)

-- name: take_rebuild
UPDATE user_stats SET in_flight = $2, in_flight_until = $3, last_enqueued_at = GREATEST(last_enqueued_at, $4)
WHERE user_id = $1

-- name: finish_rebuilt
UPDATE user_stats
SET cluster_version = cluster_version + 1, last_clustered_at = $3, pending_insights_count = $4, in_flight = NULL,
    in_flight_until = NULL, last_request = $5, caused_by = $5
WHERE user_id = $1 AND cluster_version = $2
RETURNING cluster_version

-- name: finish_unbuilt
UPDATE user_stats
SET last_checked_at = COALESCE($2, last_checked_at), in_flight = NULL, in_flight_until = NULL, last_request = $3
WHERE user_id = $1

-- name: insert_clusters
INSERT INTO user_clusters (user_id, cluster_version, clusters, noise, dataset_size, omitted, hwm, updated_at, caused_by,
                           basis_id, outside, neighbours, left_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: drop_old_clusters
DELETE FROM user_clusters WHERE user_id = $1 AND cluster_version <= $2

-- name: drop_old_neighbours
UPDATE user_clusters SET neighbours = NULL
WHERE user_id = $1 AND cluster_version < $2 AND neighbours IS NOT NULL

-- The birth of a cluster that is alive is kept however long ago it was.
-- name: drop_old_history
DELETE FROM cluster_history
WHERE user_id = $1 AND cluster_version <= $2 AND NOT (kind = 'born' AND cluster_id = ANY ($3::text[]))

-- name: raise_hwm
INSERT INTO user_cluster_hwm (user_id, channel_id, last_seq)
SELECT $1, channel_id, upto FROM unnest($2::text[], $3::bigint[]) AS s (channel_id, upto)
ON CONFLICT (user_id, channel_id) DO UPDATE SET last_seq = GREATEST(user_cluster_hwm.last_seq, EXCLUDED.last_seq)

-- name: exclude_insights
UPDATE insights SET excluded_at = $2
WHERE insight_id = ANY ($1::text[]) AND embedding IS NULL AND excluded_at IS NULL
RETURNING insight_id

-- name: mirror_channels
SELECT channel_id, current_seq, last_arrived_at, announced_seq FROM channels WHERE channel_id = ANY ($1::text[])

-- name: mirror_users
SELECT u.user_id, u.last_clustered_at, u.last_active_at, u.cluster_version, u.plan, u.last_enqueued_at,
       COALESCE((SELECT sum(GREATEST(0, c.current_seq - COALESCE(h.last_seq, 0)))
                 FROM subscriptions s JOIN channels c USING (channel_id)
                 LEFT JOIN user_cluster_hwm h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
                 WHERE s.user_id = u.user_id AND s.subscribed), 0)::bigint AS pending
FROM user_stats u WHERE u.user_id = ANY ($1::text[])

-- name: mirror_hwm
SELECT user_id, channel_id, last_seq FROM user_cluster_hwm WHERE user_id = ANY ($1::text[])

-- name: dirty_since
SELECT channel_id, last_arrived_at FROM channels
WHERE last_arrived_at >= $1 OR current_seq > announced_seq ORDER BY last_arrived_at LIMIT $2
