-- What is served of a user's feed now, what it was made from, and where the versions before it stood.

-- name: explain_feed
SELECT coalesce(stats.cluster_version, 0) AS cluster_version,
       feed.version AS feed_version, feed.etag AS feed_etag, feed.changed_at AS feed_changed_at,
       document.cluster_version AS document_cluster_version, document.built_at,
       clusters.version AS clusters_version, stored.caused_by, stored.updated_at, stored.dataset_size, stored.omitted,
       stored.noise, stored.basis_id, json_array_length(stored.clusters) AS clusters, stored.hwm,
       before.hwm AS hwm_before, erased.erased_ms, erased.position AS erased_by
FROM version_floor AS floor
LEFT JOIN user_erasures AS erased ON erased.user_hash = sha256(convert_to($1::text, 'UTF8'))
LEFT JOIN user_stats AS stats ON stats.user_id = $1::text
LEFT JOIN resource_versions AS feed ON feed.key = 'feed:' || $1::text
LEFT JOIN resource_versions AS clusters ON clusters.key = 'clusters:' || $1::text
LEFT JOIN feed_documents AS document ON document.user_id = $1::text
LEFT JOIN user_clusters AS stored ON stored.user_id = $1::text AND stored.cluster_version = stats.cluster_version
LEFT JOIN user_clusters AS before ON before.user_id = $1::text AND before.cluster_version = stats.cluster_version - 1

-- Insights by channel and number.
-- name: explain_insights
SELECT i.channel_id, i.seq, i.insight_id, 
       CASE WHEN i.retracted_at IS NULL THEN left(i.text, 120) END AS text, i.arrived_at, i.source_partition, i.source_offset
FROM unnest($1::text[], $2::bigint[]) AS asked (channel_id, seq)
JOIN insights AS i ON i.channel_id = asked.channel_id AND i.seq = asked.seq

-- Insights by id.
-- name: explain_members
SELECT channel_id, insight_id, CASE WHEN retracted_at IS NULL THEN left(text, 120) END AS text, arrived_at, source_partition,
       source_offset
FROM insights WHERE insight_id = ANY ($1::text[])

-- What asked for the rebuild of versions of a user's clusters that are kept.
-- name: explain_versions
SELECT cluster_version, caused_by FROM user_clusters WHERE user_id = $1 AND cluster_version = ANY ($2::bigint[])

-- name: explain_subscriptions
SELECT channel_id, changed_ms FROM subscriptions WHERE user_id = $1 AND channel_id = ANY ($2::text[])

-- name: explain_resource
SELECT version, etag, position, changed_at FROM resource_versions WHERE key = $1
