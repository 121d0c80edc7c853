-- Events that a log lost, recreated from the rows that they left (connectors/remaking.py). $1 lost positions; to move rows, $1 their
-- former positions, $2 the new ones, $3 the broker's times there in ms since 1970.

-- name: remade_schedules
SELECT schedule_position AS position, match_id, season, round, (extract(epoch FROM kickoff) * 1000)::bigint AS kickoff, home, away,
       time_unknown, status
FROM league_matches WHERE schedule_position = ANY ($1::text[]) ORDER BY split_part(schedule_position, '/', 3)::bigint

-- name: move_schedules
UPDATE league_matches SET schedule_position = moved.now, schedule_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE schedule_position = moved.before

-- The goals of a finished match are those of its result.
-- name: remade_scores
SELECT score_position AS position, match_id, season, home_goals, away_goals, minute
FROM league_matches WHERE score_position = ANY ($1::text[]) AND result_ms IS NULL
ORDER BY split_part(score_position, '/', 3)::bigint

-- name: move_scores
UPDATE league_matches SET score_position = moved.now, score_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE score_position = moved.before

-- name: remade_results
SELECT result_position AS position, match_id, season, home_goals, away_goals, home_goals_extra_time, away_goals_extra_time,
       home_penalties, away_penalties, (extract(epoch FROM finalized_at) * 1000)::bigint AS finalized_at
FROM league_matches WHERE result_position = ANY ($1::text[]) ORDER BY split_part(result_position, '/', 3)::bigint

-- name: move_results
UPDATE league_matches SET result_position = moved.now, result_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE result_position = moved.before

-- name: remade_votes
SELECT position, match_id, user_id, choice, (extract(epoch FROM cast_at) * 1000)::bigint AS ts
FROM league_votes WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_votes
UPDATE league_votes SET position = moved.now, cast_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

-- The event that last changed the counts of a match.
-- name: move_vote_counts
UPDATE league_vote_counts SET position = moved.now, cast_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

-- name: remade_predictions
SELECT position, match_id, user_id, home_goals, away_goals, (extract(epoch FROM made_at) * 1000)::bigint AS ts
FROM league_predictions WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_predictions
UPDATE league_predictions SET position = moved.now, made_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

-- name: remade_comments
SELECT position, match_id, user_id, body AS text, (extract(epoch FROM posted_at) * 1000)::bigint AS ts
FROM league_comments WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_comments
UPDATE league_comments SET position = moved.now, posted_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

-- name: remade_ads
SELECT position, ad_id, payload IS NULL AS deleted, coalesce(payload, '') AS payload,
       (extract(epoch FROM changed_at) * 1000)::bigint AS ts
FROM league_ads WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_ads
UPDATE league_ads SET position = moved.now, changed_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before

-- name: remade_rules
SELECT position, season, rules FROM league_rules WHERE position = ANY ($1::text[]) ORDER BY split_part(position, '/', 3)::bigint

-- name: move_rules
UPDATE league_rules SET position = moved.now, changed_ms = moved.arrived_ms
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS moved (before, now, arrived_ms)
WHERE position = moved.before
