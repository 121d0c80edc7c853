-- name: positions_of
SELECT topic, partition, topic_id, next FROM positions WHERE "group" = $1

-- name: insert_positions
INSERT INTO positions ("group", topic, partition, topic_id, next)
SELECT $1, topic, partition, topic_id, next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[]) AS fresh (topic, partition, topic_id, next)
ON CONFLICT DO NOTHING

-- name: skip_to
UPDATE positions SET next = $4 WHERE "group" = $1 AND topic = $2 AND partition = $3 AND next < $4

-- name: advance_positions
UPDATE positions AS p SET next = moved.next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[], $6::bigint[]) AS moved (topic, partition, topic_id, expected, next)
WHERE p."group" = $1 AND p.topic = moved.topic AND p.partition = moved.partition
  AND p.topic_id = moved.topic_id AND p.next = moved.expected

-- name: outbox_take
SELECT id, shard, topic, partition, key, value, headers FROM outbox
WHERE shard = ANY ($1::smallint[]) ORDER BY id LIMIT $2

-- name: outbox_delete
DELETE FROM outbox WHERE id = ANY ($1::bigint[])

-- name: outbox_lock
SELECT pg_try_advisory_lock($1::int, $2::int)
