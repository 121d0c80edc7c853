-- name: positions_of
SELECT topic, partition, topic_id, next, CASE WHEN epoch_at = next THEN leader_epoch END AS leader_epoch
FROM positions WHERE "group" = $1

-- Positions of a group in some partitions, which nobody moves until the end of the transaction.
-- name: hold_positions
SELECT topic, partition, next, CASE WHEN epoch_at = next THEN leader_epoch END AS leader_epoch FROM positions
WHERE "group" = $1 AND (topic, partition) IN (SELECT * FROM unnest($2::text[], $3::integer[]))
ORDER BY topic, partition FOR UPDATE

-- name: positions_of_groups
SELECT "group", topic, partition, next FROM positions WHERE "group" = ANY ($1::text[])

-- name: insert_positions
INSERT INTO positions ("group", topic, partition, topic_id, next)
SELECT $1, topic, partition, topic_id, next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[]) AS fresh (topic, partition, topic_id, next)
ON CONFLICT DO NOTHING

-- name: skip_to
UPDATE positions SET next = $4 WHERE "group" = $1 AND topic = $2 AND partition = $3 AND next < $4

-- Not in a partition of which another consumer has found that it lost its tail: what is read there may stand on given positions.
-- name: advance_positions
UPDATE positions AS p SET next = moved.next, leader_epoch = moved.leader_epoch, epoch_at = moved.next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[], $6::bigint[], $7::int[])
    AS moved (topic, partition, topic_id, expected, next, leader_epoch)
WHERE p."group" = $1 AND p.topic = moved.topic AND p.partition = moved.partition
  AND p.topic_id = moved.topic_id AND p.next = moved.expected
  AND NOT EXISTS (SELECT FROM log_truncations AS t
      WHERE t.topic = p.topic AND t.partition = p.partition AND t.repaired_at IS NULL)

-- A statement is planned once and for all, as a rule for what its tables held then. Of a table that was empty all rows are read, and
-- each compared with each of the batch's ids, until the table is next analyzed: over a second for 5,000 ids and 50,000 rows.
-- name: plan_anew
SET LOCAL plan_cache_mode = force_custom_plan

-- Events of a topic with a partition that lost its tail wait: which of them belong there is known only from the hash of their keys.
-- name: outbox_take
SELECT id, shard, topic, partition, key, value, headers, added_at FROM outbox
WHERE shard = ANY ($1::smallint[]) AND topic <> ALL (ARRAY (SELECT topic FROM log_truncations WHERE repaired_at IS NULL))
ORDER BY id LIMIT $2

-- Rows up to $1 of them, and how long the oldest has waited
-- name: outbox_backlog
SELECT (SELECT count(*) FROM (SELECT FROM outbox LIMIT $1) AS waiting) AS rows,
    (SELECT extract(epoch FROM clock_timestamp() - added_at)::float8 FROM outbox ORDER BY id LIMIT 1) AS age_seconds

-- Only those of shards that are still this relay's: another, which took a shard over, publishes its rows again. $1 ids, $2 kind of
-- the leases, $3 and $4 the leases' names and epochs, $5 the relay
-- name: outbox_delete
DELETE FROM outbox WHERE id = ANY ($1::bigint[]) AND shard IN (
    SELECT l.name::smallint FROM leases AS l JOIN unnest($3::text[], $4::bigint[]) AS held (name, epoch) USING (name, epoch)
    WHERE l.kind = $2 AND l.owner = $5)

-- name: relay_epochs_of
SELECT topic, partition, shard, epoch, "offset" FROM relay_epochs WHERE "group" = $1

-- name: raise_relay_epochs
INSERT INTO relay_epochs AS e ("group", topic, partition, shard, epoch, "offset")
SELECT $1, topic, partition, shard, epoch, "offset"
FROM unnest($2::text[], $3::int[], $4::smallint[], $5::bigint[], $6::bigint[]) AS found (topic, partition, shard, epoch, "offset")
ORDER BY topic, partition, shard
ON CONFLICT ("group", topic, partition, shard) DO UPDATE SET epoch = excluded.epoch, "offset" = excluded."offset"

-- name: stopped_of
SELECT "group", topic, partition, next, stopped_at, reason, dead, events, park_until
FROM stopped_partitions WHERE "group" = $1 ORDER BY topic, partition

-- name: stopped_all
SELECT "group", topic, partition, next, stopped_at, reason, dead, events, park_until
FROM stopped_partitions WHERE park_until IS NULL ORDER BY "group", topic, partition

-- name: stop_partition
INSERT INTO stopped_partitions ("group", topic, partition, next, stopped_at, reason, dead, events)
SELECT $1, $2, $3, p.next, $5, $6, $7, $8
FROM positions AS p WHERE p."group" = $1 AND p.topic = $2 AND p.partition = $3 AND p.next = $4
FOR UPDATE
ON CONFLICT ("group", topic, partition) DO UPDATE SET
    next = EXCLUDED.next, stopped_at = EXCLUDED.stopped_at, reason = EXCLUDED.reason,
    dead = EXCLUDED.dead, events = EXCLUDED.events, park_until = NULL

-- name: park_partition
UPDATE stopped_partitions SET park_until = $4
WHERE "group" = $1 AND topic = $2 AND partition = $3

-- name: resume_partitions
DELETE FROM stopped_partitions AS s
USING unnest($2::text[], $3::int[]) AS resumed (topic, partition)
WHERE s."group" = $1 AND s.topic = resumed.topic AND s.partition = resumed.partition

-- name: position_of
SELECT next FROM positions WHERE "group" = $1 AND topic = $2 AND partition = $3

-- name: truncations_all
SELECT topic, partition, found_at, found_by, end_offset, next, filled_to, missing, repaired_at FROM log_truncations
ORDER BY topic, partition, found_at

-- name: truncations_open
SELECT topic, partition, found_at, found_by, end_offset, next, filled_to, missing, repaired_at FROM log_truncations
WHERE repaired_at IS NULL ORDER BY topic, partition

-- The lowest end and the highest position stay: several consumers find one loss, each from its own place. $1 who, $2 now
-- name: note_truncations
INSERT INTO log_truncations AS t (topic, partition, found_at, found_by, end_offset, next)
SELECT topic, partition, $2, $1, end_offset, next
FROM unnest($3::text[], $4::int[], $5::bigint[], $6::bigint[]) AS found (topic, partition, end_offset, next)
ORDER BY topic, partition
ON CONFLICT (topic, partition) WHERE repaired_at IS NULL DO UPDATE
    SET end_offset = least(t.end_offset, excluded.end_offset), next = greatest(t.next, excluded.next)

-- `known` is the highest position of which the epoch of the record before it is known, with that epoch.
-- name: highest_positions
SELECT topic, partition, topic_id, max(next) AS next,
    max(ARRAY [next, leader_epoch]) FILTER (WHERE epoch_at = next AND leader_epoch IS NOT NULL) AS known
FROM positions GROUP BY topic, partition, topic_id
