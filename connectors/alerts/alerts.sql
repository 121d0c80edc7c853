-- Who was told of which events.
-- name: alerts_sent_of
SELECT position, channel FROM alerts_sent WHERE position = ANY ($1::text[])

-- name: store_alerts_sent
INSERT INTO alerts_sent (position, channel, sent_at) SELECT unnest($1::text[]), $2, $3 ON CONFLICT DO NOTHING

-- name: trim_alerts_sent
DELETE FROM alerts_sent WHERE sent_at < $1

-- The last digests of these users, by channel. $1 users
-- name: digests_sent_of
SELECT user_id, channel, day, cluster_version FROM digests_sent WHERE user_id = ANY ($1::text[])

-- name: store_digest_sent
INSERT INTO digests_sent AS held (user_id, channel, day, cluster_version, sent_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (user_id, channel) DO UPDATE SET
    day = excluded.day, cluster_version = excluded.cluster_version, sent_at = excluded.sent_at
WHERE held.day < excluded.day

-- name: erase_digests_sent
DELETE FROM digests_sent WHERE user_id = ANY ($1::text[])
