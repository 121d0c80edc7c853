-- Who was told of which events.
-- name: alerts_sent_of
SELECT position, channel FROM alerts_sent WHERE position = ANY ($1::text[])

-- name: store_alerts_sent
INSERT INTO alerts_sent (position, channel, sent_at) SELECT unnest($1::text[]), $2, $3 ON CONFLICT DO NOTHING

-- name: trim_alerts_sent
DELETE FROM alerts_sent WHERE sent_at < $1
