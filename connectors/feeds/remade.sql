-- Events that a log lost, recreated from the rows that they left (connectors/remaking.py). $1 lost positions, or the time in ms
-- since 1970 of the last record that is left.

-- A retracted insight has no text any more; its event comes without one.
-- name: remade_insights
SELECT lost.position, insight_id, channel_id, (extract(epoch FROM ts) * 1000)::bigint AS ts, text, url
FROM unnest($1::text[]) AS lost (position) JOIN insights
    ON source_partition = split_part(lost.position, '/', 2)::int AND source_offset = split_part(lost.position, '/', 3)::bigint
ORDER BY source_offset

-- name: move_insights
UPDATE insights SET source_offset = split_part(moved.now, '/', 3)::bigint, arrived_at = to_timestamp(moved.arrived_ms / 1000.0)
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE source_partition = split_part(moved.before, '/', 2)::int AND source_offset = split_part(moved.before, '/', 3)::bigint

-- name: move_channels
UPDATE channels AS c SET last_arrived_at = greatest(c.last_arrived_at, moved.at)
FROM (SELECT channel_id, max(arrived_at) AS at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
      JOIN insights ON source_partition = split_part(now, '/', 2)::int AND source_offset = split_part(now, '/', 3)::bigint
      GROUP BY channel_id) AS moved
WHERE c.channel_id = moved.channel_id

-- name: remade_retractions
SELECT insight_id, channel_id, (extract(epoch FROM retracted_at) * 1000)::bigint AS ts
FROM insights WHERE retracted_at >= to_timestamp($1::bigint / 1000.0) ORDER BY retracted_at, insight_id

-- name: remade_subscriptions
SELECT user_id, channel_id, subscribed, changed_ms AS ts
FROM subscriptions WHERE changed_ms >= $1 ORDER BY changed_ms, user_id, channel_id

-- name: remade_plans
SELECT user_id, plan, plan_changed_ms AS ts
FROM user_stats WHERE plan_changed_ms >= greatest($1::bigint, 1) ORDER BY plan_changed_ms, user_id
