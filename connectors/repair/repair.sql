-- name: highest_of_places
SELECT p.topic, p.partition, max(p.next) AS next
FROM positions AS p JOIN unnest($1::text[], $2::int[]) AS place (topic, partition) USING (topic, partition)
GROUP BY p.topic, p.partition

-- The positions of the groups stay: what they have not read there was filled up. The epochs were those of lost records.
-- name: forget_epochs
UPDATE positions SET leader_epoch = NULL, epoch_at = NULL WHERE topic = $1 AND partition = $2

-- $3 one past the last position that was read, $4 one past the last that is not given again, $5 now
-- name: close_truncation
UPDATE log_truncations SET next = $3, filled_to = $4, repaired_at = $5
WHERE topic = $1 AND partition = $2 AND repaired_at IS NULL
