-- name: ensure_channels
INSERT INTO channels (channel_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: lock_channels
SELECT channel_id, current_seq FROM channels WHERE channel_id = ANY ($1::text[]) ORDER BY channel_id FOR UPDATE

-- name: known_insights
SELECT insight_id, channel_id FROM insights WHERE insight_id = ANY ($1::text[])

-- What is stored under these ids, to be compared with what comes again.
-- name: known_contents
SELECT insight_id, channel_id, ts, url, encode(sha256(convert_to(text, 'UTF8')), 'hex') AS text_sha256,
       source_partition, source_offset
FROM insights WHERE insight_id = ANY ($1::text[])

-- name: advance_channels
UPDATE channels AS c
SET current_seq = a.head,
    last_insight_ts = GREATEST(c.last_insight_ts, a.ts),
    last_arrived_at = GREATEST(c.last_arrived_at, a.arrived_at)
FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[]) AS a (channel_id, head, ts, arrived_at)
WHERE c.channel_id = a.channel_id

-- name: any_early_retraction
SELECT EXISTS (SELECT FROM early_retractions) AS found

-- name: take_early_retractions
DELETE FROM early_retractions WHERE insight_id = ANY ($1::text[]) RETURNING insight_id, channel_id, retracted_at

-- Of insights that nobody was told of yet: no clusters hold them, so nothing has changed for anybody.
-- name: retract_early_insights
UPDATE insights AS i SET retracted_at = COALESCE(i.retracted_at, r.at)
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS r (insight_id, channel_id, at)
WHERE i.insight_id = r.insight_id AND i.channel_id = r.channel_id

-- Counts them by channel, under the locks of `lock_channels`; one that is retracted already is not counted again.
-- name: retract_insights
WITH fresh AS (
    SELECT i.insight_id, i.channel_id, min(r.at) AS at, row_number() OVER (PARTITION BY i.channel_id ORDER BY i.seq) AS number
    FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS r (insight_id, channel_id, at)
    JOIN insights AS i ON i.insight_id = r.insight_id AND i.channel_id = r.channel_id
    WHERE i.retracted_at IS NULL GROUP BY i.insight_id
), counted AS (
    UPDATE channels AS c SET retractions = c.retractions + f.number
    FROM (SELECT channel_id, count(*) AS number FROM fresh GROUP BY channel_id) AS f
    WHERE c.channel_id = f.channel_id
    RETURNING c.channel_id, c.current_seq, c.retractions, c.retractions - f.number AS before
), marked AS (
    UPDATE insights AS i SET retracted_at = f.at, retraction = c.before + f.number
    FROM fresh AS f JOIN counted AS c USING (channel_id) WHERE i.insight_id = f.insight_id
)
SELECT channel_id, current_seq, retractions FROM counted ORDER BY channel_id

-- name: remember_retractions
INSERT INTO early_retractions (insight_id, channel_id, retracted_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[]) ON CONFLICT DO NOTHING

-- name: erase_hwm
DELETE FROM user_cluster_hwm WHERE user_id = $1

-- name: erase_marks
DELETE FROM user_cluster_marks WHERE user_id = $1

-- name: erase_demands
DELETE FROM rebuild_demands WHERE user_id = $1

-- name: erase_clusters
DELETE FROM user_clusters WHERE user_id = $1

-- name: erase_history
DELETE FROM cluster_history WHERE user_id = $1

-- name: erase_curations
DELETE FROM cluster_curations WHERE user_id = $1

-- name: erase_feed
DELETE FROM feed_documents WHERE user_id = $1

-- name: heads_of_channels
SELECT channel_id, current_seq, retractions FROM channels WHERE channel_id = ANY ($1::text[])

-- name: subscribers_page
SELECT user_id FROM subscriptions
WHERE channel_id = $1 AND subscribed AND user_id > $2 ORDER BY user_id LIMIT $3

-- name: announce_channels
UPDATE channels AS c SET announced_seq = GREATEST(c.announced_seq, a.head)
FROM unnest($1::text[], $2::bigint[]) AS a (channel_id, head)
WHERE c.channel_id = a.channel_id AND c.announced_seq < a.head

-- `version_before`: the version that the next one follows. One of a user who was erased follows the floor, which none of theirs
-- was ever above, so that a number of before the erasure names nothing that came after it.
-- name: rebuild_user
SELECT stats.cluster_version, vectors_awaited_since, held.basis_id, coalesce(held.preliminary, false) AS is_preliminary,
       CASE WHEN stats.cluster_version = 0 AND EXISTS (
                SELECT 1 FROM user_erasures WHERE user_hash = sha256(convert_to($1::text, 'UTF8')))
            THEN (SELECT value FROM version_floor) ELSE stats.cluster_version END AS version_before,
       plan, last_active_at, last_clustered_at, last_checked_at, last_enqueued_at, last_request, curated_revision,
       curated_revision > curated_shown AS is_curated,
       EXISTS (SELECT 1 FROM user_cluster_hwm h WHERE h.user_id = $1 AND h.is_shown AND NOT EXISTS (
                   SELECT 1 FROM subscriptions s
                   WHERE s.user_id = $1 AND s.channel_id = h.channel_id AND s.subscribed)) AS has_left
FROM user_stats AS stats
LEFT JOIN user_clusters AS held ON held.user_id = stats.user_id AND held.cluster_version = stats.cluster_version
WHERE stats.user_id = $1

-- $2: since when an insight is in the window. `floor`: up to there the user's clusters held all before that.
-- name: rebuild_channels
SELECT s.channel_id, COALESCE(c.current_seq, 0) AS head, COALESCE(h.last_seq, 0) AS hwm,
       COALESCE(h.is_shown, false) AS is_shown, COALESCE(c.retractions, 0) AS retractions,
       COALESCE(h.retractions, 0) AS retractions_hwm,
       COALESCE((SELECT max(m.last_seq) FROM user_cluster_marks m
                 WHERE m.user_id = $1 AND m.channel_id = s.channel_id AND m.marked_at < $2), 0) AS floor,
       (SELECT min(i.seq) FROM insights i
        WHERE i.channel_id = s.channel_id AND i.embedding IS NULL AND i.excluded_at IS NULL
          AND (i.next_embedding IS NULL OR i.next_model IS DISTINCT FROM (SELECT basis_id FROM active_basis))) AS first_unembedded
FROM subscriptions s
LEFT JOIN channels c USING (channel_id)
LEFT JOIN user_cluster_hwm h ON h.user_id = s.user_id AND h.channel_id = s.channel_id
WHERE s.user_id = $1 AND s.subscribed ORDER BY s.channel_id

-- $8: with texts and vectors, or only which insights these are. They are chosen and put in order by what is short, and then read
-- by their place, which holds within one statement: with their vectors 10,000 are too long to be sorted in memory.
-- name: rebuild_insights
SELECT i.insight_id, CASE WHEN $8::boolean THEN left(i.text, $6) END AS text,
       CASE WHEN $8::boolean THEN i.embedding END AS embedding, i.embedding_model,
       CASE WHEN $8::boolean THEN i.next_embedding END AS next_embedding, i.next_model, newest.total
FROM (
    SELECT * FROM (
        SELECT i.ctid AS place, i.channel_id, i.seq, count(*) OVER () AS total
        FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS s (channel_id, floor, upto)
        JOIN insights i ON i.channel_id = s.channel_id AND i.seq <= s.upto
             AND (i.seq > s.floor OR (i.ts >= $4 AND i.ts <= $5))
        WHERE (i.embedding IS NOT NULL OR i.next_embedding IS NOT NULL) AND i.retracted_at IS NULL AND i.excluded_at IS NULL
        ORDER BY i.ts DESC, i.insight_id LIMIT $7
    ) AS found ORDER BY channel_id, seq
) AS newest JOIN insights AS i ON i.ctid = newest.place ORDER BY newest.channel_id, newest.seq

-- Insights of the data set ($1 to $5 as above) that have a built-in vector and none of the version $6 yet.
-- name: unread_insights
SELECT i.channel_id, min(i.seq) AS first, count(*) AS count
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS s (channel_id, floor, upto)
JOIN insights i ON i.channel_id = s.channel_id AND i.seq <= s.upto AND (i.seq > s.floor OR (i.ts >= $4 AND i.ts <= $5))
WHERE i.retracted_at IS NULL AND i.excluded_at IS NULL AND i.embedding IS NOT NULL AND i.embedding_model <> $6::text
  AND (i.next_embedding IS NULL OR i.next_model IS DISTINCT FROM $6)
  AND i.embedding_model IN (SELECT basis_id FROM bases WHERE kind <> 'remote')
GROUP BY i.channel_id

-- name: last_version
SELECT clusters, outside, neighbours, basis_id, left_out, redactions, found, preliminary FROM user_clusters
WHERE user_id = $1 AND cluster_version = $2

-- name: rebuild_curations
SELECT curation_id, curation, arrived_ms, source_partition, source_offset
FROM cluster_curations WHERE user_id = $1 ORDER BY arrived_ms, source_partition, source_offset

-- Whether an insight of the data set ($1 to $5 as above) was retracted beyond the counts $6 that are accounted for.
-- name: has_retractions_beyond
SELECT EXISTS (
    SELECT 1 FROM unnest($1::text[], $2::bigint[], $3::bigint[], $6::bigint[]) AS s (channel_id, floor, upto, known)
    JOIN insights i ON i.channel_id = s.channel_id AND i.retraction > s.known AND i.seq <= s.upto
         AND (i.seq > s.floor OR (i.ts >= $4 AND i.ts <= $5)))

-- name: note_enqueued
UPDATE user_stats SET last_enqueued_at = GREATEST(last_enqueued_at, $2) WHERE user_id = $1

-- name: take_rebuild
UPDATE user_stats SET in_flight = $2, in_flight_until = $3, last_enqueued_at = GREATEST(last_enqueued_at, $4)
WHERE user_id = $1

-- Not of a user who was erased meanwhile and is known again, without a version as before: its row has no such request in
-- flight.
-- name: finish_rebuilt
UPDATE user_stats
SET cluster_version = $6, last_clustered_at = $3, pending_insights_count = $4, in_flight = NULL,
    in_flight_until = NULL, last_request = $5, caused_by = $5, curated_shown = $7,
    delayed_at = NULL, delay_reason = NULL, delays = 0, vectors_awaited_since = NULL
WHERE user_id = $1 AND cluster_version = $2 AND in_flight = $5
RETURNING cluster_version

-- name: finish_unbuilt
UPDATE user_stats
SET last_checked_at = COALESCE($2, last_checked_at), in_flight = NULL, in_flight_until = NULL, last_request = $3,
    last_enqueued_at = GREATEST(last_enqueued_at, $4), delayed_at = NULL, delay_reason = NULL, delays = 0,
    vectors_awaited_since = NULL
WHERE user_id = $1

-- The request does not count, as in `delay_rebuild`; $4 when it was given back.
-- name: await_vectors
UPDATE user_stats
SET in_flight = NULL, in_flight_until = NULL, last_request = $2, last_enqueued_at = $3,
    vectors_awaited_since = COALESCE(vectors_awaited_since, $4)
WHERE user_id = $1

-- The request does not count: $3 is when the one before it was made. $4 when it was given back, $5 why.
-- name: delay_rebuild
UPDATE user_stats
SET in_flight = NULL, in_flight_until = NULL, last_request = $2, last_enqueued_at = $3,
    delayed_at = $4, delay_reason = $5, delays = delays + 1
WHERE user_id = $1

-- What changed up to $14 is forgotten with this version. What a version told that followed one without identities, it made up.
-- name: insert_clusters
INSERT INTO user_clusters (user_id, cluster_version, clusters, noise, dataset_size, omitted, hwm, updated_at, caused_by,
                           basis_id, outside, neighbours, left_out, told_since, found, curations, preliminary, regrouped)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, greatest($14::bigint, 0, (
    SELECT CASE WHEN last.outside IS NULL THEN $2::bigint ELSE last.told_since END
    FROM user_clusters AS last WHERE last.user_id = $1 ORDER BY last.cluster_version DESC LIMIT 1)), $15, $16, $17, $18)

-- Users whose current version is preliminary and was not asked to be replaced.
-- name: preliminary_users
SELECT held.user_id
FROM user_clusters AS held JOIN user_stats AS stats ON stats.user_id = held.user_id AND stats.cluster_version = held.cluster_version
WHERE held.preliminary AND held.replacement_asked_at IS NULL
ORDER BY held.user_id LIMIT $1

-- name: note_replacement_asked
UPDATE user_clusters SET replacement_asked_at = $2
WHERE user_id = ANY ($1::text[]) AND preliminary AND replacement_asked_at IS NULL

-- name: drop_old_clusters
DELETE FROM user_clusters WHERE user_id = $1 AND cluster_version <= $2

-- name: drop_old_neighbours
UPDATE user_clusters SET neighbours = NULL, found = NULL
WHERE user_id = $1 AND cluster_version < $2 AND (neighbours IS NOT NULL OR found IS NOT NULL)

-- The birth of a cluster that is alive is kept however long ago it was.
-- name: drop_old_history
DELETE FROM cluster_history
WHERE user_id = $1 AND cluster_version <= $2 AND NOT (kind = 'born' AND cluster_id = ANY ($3::text[]))

-- These are the channels that are accounted for from now on, and no others.
-- name: raise_hwm
INSERT INTO user_cluster_hwm (user_id, channel_id, last_seq, is_shown, retractions)
SELECT $1, channel_id, upto, true, retractions
FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS s (channel_id, upto, retractions)
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    last_seq = GREATEST(user_cluster_hwm.last_seq, EXCLUDED.last_seq), is_shown = true,
    retractions = GREATEST(user_cluster_hwm.retractions, EXCLUDED.retractions)

-- name: hide_channels
UPDATE user_cluster_hwm SET is_shown = false WHERE user_id = $1 AND is_shown AND channel_id <> ALL ($2::text[])

-- name: mark_hwm
INSERT INTO user_cluster_marks AS held (user_id, channel_id, day, last_seq, marked_at)
SELECT $1, channel_id, ($4::timestamptz AT TIME ZONE 'UTC')::date, upto, $4
FROM unnest($2::text[], $3::bigint[]) AS s (channel_id, upto)
ON CONFLICT (user_id, channel_id, day) DO UPDATE SET
    last_seq = GREATEST(held.last_seq, EXCLUDED.last_seq), marked_at = GREATEST(held.marked_at, EXCLUDED.marked_at)

-- Of those from before the window the newest of a channel is its floor; older ones say nothing any more.
-- name: drop_old_marks
DELETE FROM user_cluster_marks AS old
WHERE user_id = $1 AND marked_at < $2 AND EXISTS (
    SELECT 1 FROM user_cluster_marks AS newer
    WHERE newer.user_id = $1 AND newer.channel_id = old.channel_id AND newer.marked_at < $2 AND newer.day > old.day)

-- name: answer_demands
UPDATE rebuild_demands
SET outcome = $3, reason = $4, cluster_version = $5, request_position = $6, finished_at = $7
WHERE user_id = $1 AND revision <= $2 AND outcome IS NULL

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

-- name: mirror_channels_after
SELECT channel_id, current_seq, last_arrived_at, announced_seq FROM channels WHERE channel_id > $1 ORDER BY channel_id LIMIT $2

-- name: mirror_users_after
SELECT user_id FROM user_stats WHERE user_id > $1 ORDER BY user_id LIMIT $2

-- name: dirty_since
SELECT channel_id, last_arrived_at FROM channels
WHERE last_arrived_at >= $1 OR current_seq > announced_seq ORDER BY last_arrived_at LIMIT $2
