-- What a digest reads: when versions were made, and the insights of clusters that have news.

-- The versions of a user whose time is known: those that are kept, and those whose changes are. $1 user
-- $2: the newest version at a time; null: none was there.
-- name: digest_version_at
SELECT max(cluster_version) FROM (
    SELECT cluster_version FROM user_clusters WHERE user_id = $1 AND updated_at <= $2
    UNION ALL
    SELECT cluster_version FROM cluster_history WHERE user_id = $1 AND evolved_at <= $2
) AS known

-- $2: a version; null: unknown.
-- name: digest_time_of
SELECT max(at) FROM (
    SELECT updated_at AS at FROM user_clusters WHERE user_id = $1 AND cluster_version = $2
    UNION ALL
    SELECT max(evolved_at) FROM cluster_history WHERE user_id = $1 AND cluster_version <= $2
) AS known

-- How many insights of each place have their own time in this week, and in the week before it.
-- $1 places and $2 ids, $3 and $4 the beginnings of the week before and of this week
-- name: digest_weeks
SELECT asked.place, count(*) FILTER (WHERE i.ts > $4) AS week, count(*) FILTER (WHERE i.ts <= $4) AS week_before
FROM unnest($1::int[], $2::text[]) AS asked (place, insight_id)
JOIN insights AS i ON i.insight_id = asked.insight_id
WHERE i.retracted_at IS NULL AND i.ts > $3
GROUP BY asked.place

-- The same insights by channel, all that are left. $1 places and $2 ids
-- name: digest_channels
SELECT asked.place, i.channel_id, count(*) AS count, min(i.ts) AS first_ts, max(i.ts) AS last_ts
FROM unnest($1::int[], $2::text[]) AS asked (place, insight_id)
JOIN insights AS i ON i.insight_id = asked.insight_id
WHERE i.retracted_at IS NULL
GROUP BY asked.place, i.channel_id

-- $1 places and $2 ids, $3 how many of the newest of a place
-- name: digest_insights
SELECT place, insight_id, channel_id, ts, text, url FROM (
    SELECT asked.place, i.insight_id, i.channel_id, i.ts, left(i.text, 1000) AS text, i.url,
           row_number() OVER (PARTITION BY asked.place ORDER BY i.ts DESC, i.insight_id) AS number
    FROM unnest($1::int[], $2::text[]) AS asked (place, insight_id)
    JOIN insights AS i ON i.insight_id = asked.insight_id
    WHERE i.retracted_at IS NULL
) AS ranked
WHERE number <= $3 ORDER BY place, number
