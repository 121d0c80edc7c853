-- Users: their plans, activity and subscriptions. Rows are locked in the order of ids.

-- name: ensure_users
INSERT INTO user_stats (user_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING RETURNING user_id

-- name: lock_users
SELECT user_id, revision, plan, plan_changed_ms, last_active_at, subscriptions_replaced_ms
FROM user_stats WHERE user_id = ANY ($1::text[]) ORDER BY user_id FOR UPDATE

-- name: subscriptions_of_users
SELECT user_id, channel_id, subscribed, changed_ms FROM subscriptions WHERE user_id = ANY ($1::text[])

-- name: update_users
UPDATE user_stats AS u
SET revision = c.revision, plan = c.plan, plan_changed_ms = c.plan_changed_ms, last_active_at = c.last_active_at,
    subscriptions_replaced_ms = c.replaced_ms, caused_by = c.caused_by
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::text[])
     AS c (user_id, revision, plan, plan_changed_ms, last_active_at, replaced_ms, caused_by)
WHERE u.user_id = c.user_id

-- One that is read again is told again, and so answered again.
-- name: store_demands
INSERT INTO rebuild_demands (position, user_id, revision, demanded_at, forced)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::boolean[])
ON CONFLICT (user_id, position) DO UPDATE SET
    revision = EXCLUDED.revision, demanded_at = EXCLUDED.demanded_at, forced = EXCLUDED.forced, outcome = NULL, reason = NULL, cluster_version = NULL,
    request_position = NULL, finished_at = NULL

-- A hundred are a day of one every quarter of an hour: what became of older ones nobody asks for any more.
-- name: drop_old_demands
DELETE FROM rebuild_demands AS d USING (
    SELECT user_id, position, row_number() OVER (PARTITION BY user_id ORDER BY revision DESC, position) AS place
    FROM rebuild_demands WHERE user_id = ANY ($1::text[])
) AS ranked
WHERE d.user_id = ranked.user_id AND d.position = ranked.position AND ranked.place > 100

-- name: upsert_subscriptions
INSERT INTO subscriptions (user_id, channel_id, subscribed, changed_ms)
SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[])
ON CONFLICT (user_id, channel_id) DO UPDATE SET subscribed = EXCLUDED.subscribed, changed_ms = EXCLUDED.changed_ms

-- name: erase_subscriptions
DELETE FROM subscriptions WHERE user_id = $1

-- name: erase_role
DELETE FROM user_roles WHERE user_id = $1

-- name: erase_stats
UPDATE user_stats
SET pending_insights_count = 0, last_clustered_at = NULL, last_active_at = NULL, last_enqueued_at = NULL,
    last_checked_at = NULL, cluster_version = 0, plan = 'free', plan_changed_ms = 0, subscriptions_replaced_ms = 0,
    in_flight = NULL, in_flight_until = NULL, last_request = NULL, caused_by = NULL, curated_revision = 0, curated_shown = 0,
    delayed_at = NULL, delay_reason = NULL, delays = 0
WHERE user_id = $1

-- name: erase_stats_row
DELETE FROM user_stats WHERE user_id = $1

-- What a user holds of curations. $1 users
-- name: curations_of_users
SELECT user_id, curation_id, curation, arrived_ms, source_partition, source_offset
FROM cluster_curations WHERE user_id = ANY ($1::text[])

-- name: drop_curations
DELETE FROM cluster_curations WHERE user_id = $1 AND curation_id = ANY ($2::text[])

-- name: store_curation
INSERT INTO cluster_curations (user_id, curation_id, curation, arrived_ms, source_partition, source_offset)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (user_id, curation_id) DO UPDATE SET
    curation = excluded.curation, arrived_ms = excluded.arrived_ms, source_partition = excluded.source_partition,
    source_offset = excluded.source_offset

-- name: note_curated
UPDATE user_stats SET curated_revision = $2 WHERE user_id = $1
