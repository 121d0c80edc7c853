-- Groups continue behind what was filled up, where nothing is; the epochs were those of lost records. $3 first lost offset, $4 one past
-- the last that is not given again
-- name: go_on_behind
UPDATE positions SET next = CASE WHEN next >= $3 THEN greatest(next, $4) ELSE next END, leader_epoch = NULL, epoch_at = NULL
WHERE topic = $1 AND partition = $2

-- $3 one past the last position that was read, $4 one past the last that is not given again, $5 records not made again, $6 now
-- name: close_truncation
UPDATE log_truncations SET next = $3, filled_to = $4, missing = $5, repaired_at = $6
WHERE topic = $1 AND partition = $2 AND repaired_at IS NULL
