-- What the sinks of the leagues store. Rows of matches are locked with NO KEY UPDATE: what refers to a match may be stored beside.

-- name: hold_league_lock
SELECT pg_advisory_xact_lock($1, $2)

-- A match keeps its season, so this needs no lock.
-- name: seasons_of_matches
SELECT match_id, season FROM league_matches WHERE match_id = ANY ($1::text[])

-- $2, $3: broker time and position of a first match of each, or null. A season that a restore has brought has none yet.
-- name: ensure_seasons
INSERT INTO league_seasons AS held (season, created_ms, position) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[])
ON CONFLICT (season) DO UPDATE SET created_ms = excluded.created_ms, position = excluded.position
WHERE held.position IS NULL AND excluded.position IS NOT NULL

-- name: lock_seasons
SELECT season, revision FROM league_seasons WHERE season = ANY ($1::text[]) ORDER BY season FOR NO KEY UPDATE

-- name: lock_matches
SELECT * FROM league_matches WHERE match_id = ANY ($1::text[]) ORDER BY match_id FOR NO KEY UPDATE

-- A row of another season is left alone; the caller counts.
-- name: store_matches
INSERT INTO league_matches AS held (match_id, season, round, kickoff, time_unknown, status, home, away, home_goals, away_goals,
    minute, finalized_at, schedule_ms, schedule_position, score_ms, score_position, result_ms, result_position,
    home_goals_extra_time, away_goals_extra_time, home_penalties, away_penalties)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::boolean[], $6::text[], $7::text[], $8::text[],
    $9::int[], $10::int[], $11::int[], $12::timestamptz[], $13::bigint[], $14::text[], $15::bigint[], $16::text[],
    $17::bigint[], $18::text[], $19::int[], $20::int[], $21::int[], $22::int[])
ON CONFLICT (match_id) DO UPDATE SET
    round = excluded.round, kickoff = excluded.kickoff, time_unknown = excluded.time_unknown, status = excluded.status,
    home = excluded.home, away = excluded.away, home_goals = excluded.home_goals, away_goals = excluded.away_goals,
    minute = excluded.minute, finalized_at = excluded.finalized_at,
    schedule_ms = excluded.schedule_ms, schedule_position = excluded.schedule_position,
    score_ms = excluded.score_ms, score_position = excluded.score_position,
    result_ms = excluded.result_ms, result_position = excluded.result_position,
    home_goals_extra_time = excluded.home_goals_extra_time, away_goals_extra_time = excluded.away_goals_extra_time,
    home_penalties = excluded.home_penalties, away_penalties = excluded.away_penalties
WHERE held.season = excluded.season

-- name: advance_seasons
UPDATE league_seasons AS s SET revision = a.revision
FROM unnest($1::text[], $2::bigint[]) AS a (season, revision) WHERE s.season = a.season

-- name: votes_held
SELECT v.match_id, v.user_id, v.choice, v.cast_at, v.cast_ms, v.position
FROM unnest($1::text[], $2::text[]) AS w (match_id, user_id) JOIN league_votes AS v USING (match_id, user_id)

-- name: store_votes
INSERT INTO league_votes (match_id, user_id, choice, cast_at, cast_ms, position)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[], $6::text[])
ON CONFLICT (match_id, user_id) DO UPDATE SET
    choice = excluded.choice, cast_at = excluded.cast_at, cast_ms = excluded.cast_ms, position = excluded.position

-- name: predictions_held
SELECT p.match_id, p.user_id, p.home_goals, p.away_goals, p.made_at, p.made_ms, p.position
FROM unnest($1::text[], $2::text[]) AS w (match_id, user_id) JOIN league_predictions AS p USING (match_id, user_id)

-- name: store_predictions
INSERT INTO league_predictions (match_id, user_id, home_goals, away_goals, made_at, made_ms, position)
SELECT * FROM unnest($1::text[], $2::text[], $3::int[], $4::int[], $5::timestamptz[], $6::bigint[], $7::text[])
ON CONFLICT (match_id, user_id) DO UPDATE SET
    home_goals = excluded.home_goals, away_goals = excluded.away_goals, made_at = excluded.made_at,
    made_ms = excluded.made_ms, position = excluded.position

-- Counted anew from the votes: $1 matches, $2 and $3 broker time and position of the event that changed the votes of each.
-- name: recount_votes
INSERT INTO league_vote_counts AS held (match_id, home, draw, away, cast_ms, position)
SELECT t.match_id, count(*) FILTER (WHERE v.choice = 'home'), count(*) FILTER (WHERE v.choice = 'draw'),
       count(*) FILTER (WHERE v.choice = 'away'), t.cast_ms, t.position
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS t (match_id, cast_ms, position)
LEFT JOIN league_votes AS v USING (match_id)
GROUP BY t.match_id, t.cast_ms, t.position
ON CONFLICT (match_id) DO UPDATE SET
    home = excluded.home, draw = excluded.draw, away = excluded.away,
    cast_ms = GREATEST(held.cast_ms, excluded.cast_ms),
    position = CASE WHEN excluded.cast_ms >= held.cast_ms THEN excluded.position ELSE held.position END

-- name: store_comments
INSERT INTO league_comments (match_id, posted_ms, position, user_id, body, posted_at)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])
ON CONFLICT DO NOTHING RETURNING match_id, position

-- Of each match the latest $2 stay.
-- name: trim_comments
WITH ranked AS (
    SELECT match_id, position,
           row_number() OVER (PARTITION BY match_id ORDER BY posted_ms DESC, length(position) DESC, position COLLATE "C" DESC) AS place
    FROM league_comments WHERE match_id = ANY ($1::text[])
)
DELETE FROM league_comments AS c USING ranked AS r
WHERE c.match_id = r.match_id AND c.position = r.position AND r.place > $2
RETURNING c.match_id, c.position

-- name: ads_held
SELECT ad_id, payload, changed_ms, position FROM league_ads WHERE ad_id = ANY ($1::text[])

-- name: store_ads
INSERT INTO league_ads (ad_id, payload, changed_at, changed_ms, position)
SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::bigint[], $5::text[])
ON CONFLICT (ad_id) DO UPDATE SET
    payload = excluded.payload, changed_at = excluded.changed_at, changed_ms = excluded.changed_ms, position = excluded.position

-- The latest event of a season counts; equal rules change nothing.
-- name: store_rules
INSERT INTO league_rules AS held (season, rules, changed_ms, position)
SELECT * FROM unnest($1::text[], $2::json[], $3::bigint[], $4::text[])
ON CONFLICT (season) DO UPDATE SET rules = excluded.rules, changed_ms = excluded.changed_ms, position = excluded.position
WHERE (held.changed_ms, length(held.position), held.position COLLATE "C")
      < (excluded.changed_ms, length(excluded.position), excluded.position COLLATE "C")
      AND held.rules::text <> excluded.rules::text
RETURNING season, position

-- name: users_of_matches
SELECT user_id FROM league_votes WHERE match_id = ANY ($1::text[])
UNION SELECT user_id FROM league_predictions WHERE match_id = ANY ($1::text[])

-- name: users_to_rate
SELECT user_id FROM league_votes UNION SELECT user_id FROM league_predictions UNION SELECT user_id FROM league_ratings

-- Ratings of users ($1) from everything they said in time of matches that have a result; a prediction says more than a vote.
-- Returns those whose rating changed.
-- name: rate_users
WITH said AS (
    SELECT user_id, match_id, 1 AS place, made_at AS said_at, home_goals, away_goals, sign(home_goals - away_goals) AS outcome
    FROM league_predictions WHERE user_id = ANY ($1::text[])
    UNION ALL
    SELECT user_id, match_id, 2, cast_at, NULL, NULL, CASE choice WHEN 'home' THEN 1 WHEN 'away' THEN -1 ELSE 0 END
    FROM league_votes WHERE user_id = ANY ($1::text[])
), judged AS (
    SELECT DISTINCT ON (s.user_id, s.match_id) s.user_id, m.result_ms, m.result_position,
           (s.home_goals = m.home_goals AND s.away_goals = m.away_goals) IS TRUE AS is_exact,
           s.outcome = sign(m.home_goals - m.away_goals) AS is_correct
    FROM said AS s JOIN league_matches AS m USING (match_id)
    WHERE m.result_ms IS NOT NULL AND s.said_at < m.kickoff
    ORDER BY s.user_id, s.match_id, s.place
), rated AS (
    SELECT user_id, sum(CASE WHEN is_exact THEN 3 WHEN is_correct THEN 1 ELSE 0 END)::bigint AS points,
           count(*) FILTER (WHERE is_exact) AS exact, count(*) FILTER (WHERE is_correct) AS correct, count(*) AS judged,
           (array_agg(result_position
                      ORDER BY result_ms DESC, length(result_position) DESC, result_position COLLATE "C" DESC))[1] AS position
    FROM judged GROUP BY user_id
), stored AS (
    INSERT INTO league_ratings AS held (user_id, points, exact, correct, judged, position)
    SELECT user_id, points, exact, correct, judged, position FROM rated ORDER BY user_id
    ON CONFLICT (user_id) DO UPDATE SET points = excluded.points, exact = excluded.exact, correct = excluded.correct,
        judged = excluded.judged, position = excluded.position
    WHERE (held.points, held.exact, held.correct, held.judged)
          IS DISTINCT FROM (excluded.points, excluded.exact, excluded.correct, excluded.judged)
    RETURNING user_id
), gone AS (
    DELETE FROM league_ratings AS held
    WHERE user_id = ANY ($1::text[]) AND NOT EXISTS (SELECT 1 FROM rated AS r WHERE r.user_id = held.user_id)
    RETURNING user_id
)
SELECT user_id FROM stored UNION ALL SELECT user_id FROM gone

-- A run is due when its number has grown; nothing is returned when it is not.
-- One that is further than the next was begun by a clock that was wrong, and holds up nothing.
-- name: begin_rating_run
INSERT INTO league_rating_runs AS held (number) VALUES ($1)
ON CONFLICT (one) DO UPDATE SET number = excluded.number
WHERE held.number < excluded.number OR held.number > excluded.number + 1
RETURNING number

-- name: erase_votes
DELETE FROM league_votes AS v USING unnest($1::text[], $2::bigint[]) AS e (user_id, erased_ms)
WHERE v.user_id = e.user_id AND v.cast_ms <= e.erased_ms RETURNING v.match_id

-- name: erase_predictions
DELETE FROM league_predictions AS p USING unnest($1::text[], $2::bigint[]) AS e (user_id, erased_ms)
WHERE p.user_id = e.user_id AND p.made_ms <= e.erased_ms RETURNING p.match_id

-- name: erase_comments
DELETE FROM league_comments AS c USING unnest($1::text[], $2::bigint[]) AS e (user_id, erased_ms)
WHERE c.user_id = e.user_id AND c.posted_ms <= e.erased_ms RETURNING c.match_id

-- name: erase_ratings
DELETE FROM league_ratings WHERE user_id = ANY ($1::text[]) RETURNING user_id
