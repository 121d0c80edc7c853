-- Every statement is all facts of one document, so that they are of one moment.

-- name: league_season_matches
SELECT * FROM league_matches WHERE season = $1

-- name: league_season_with_rules
SELECT m.*, r.rules, r.changed_ms AS rules_ms, r.position AS rules_position
FROM league_matches AS m LEFT JOIN league_rules AS r USING (season) WHERE season = $1

-- name: league_match
SELECT * FROM league_matches WHERE match_id = $1

-- name: league_match_with_votes
SELECT m.*, v.home AS votes_home, v.draw AS votes_draw, v.away AS votes_away, v.cast_ms AS votes_ms, v.position AS votes_position
FROM league_matches AS m LEFT JOIN league_vote_counts AS v USING (match_id)
WHERE m.match_id = $1

-- One row with nulls when nobody has commented. Those of a batch have one broker's time; of two positions in one partition
-- the longer one, or the larger one of a length, is later.
-- $2: how many
-- name: league_match_comments
SELECT c.user_id, c.body, c.posted_at, c.posted_ms, c.position, m.schedule_ms, m.schedule_position
FROM league_matches AS m
LEFT JOIN LATERAL (
    SELECT * FROM league_comments WHERE match_id = m.match_id
    ORDER BY posted_ms DESC, length(position) DESC, position COLLATE "C" DESC LIMIT $2
) AS c ON true
WHERE m.match_id = $1

-- Also those that are out of it (a result, cancelled), for the events that took them out.
-- $1 and $2: kickoff, both included; $3: how many
-- name: league_matches_between
SELECT m.*, v.home AS votes_home, v.draw AS votes_draw, v.away AS votes_away, v.cast_ms AS votes_ms, v.position AS votes_position
FROM league_matches AS m LEFT JOIN league_vote_counts AS v USING (match_id)
WHERE m.kickoff BETWEEN $1 AND $2 ORDER BY m.kickoff, m.match_id LIMIT $3

-- Those that may be in play, and those that were a moment ago, for the events that ended them. If there are too many, those told
-- to be in play come first, then those with the kickoff nearest to now.
-- $1 and $2: kickoff, both included; $3: now; $4: how many
-- name: league_matches_around
SELECT * FROM league_matches
WHERE kickoff BETWEEN $1 AND $2 OR (result_ms IS NULL AND score_ms IS NOT NULL)
ORDER BY (result_ms IS NULL AND score_ms IS NOT NULL) DESC, greatest(kickoff - $3, $3 - kickoff), match_id LIMIT $4

-- $1: club; $2: how many
-- name: league_club_matches
SELECT * FROM league_matches WHERE home = $1 OR away = $1 ORDER BY kickoff DESC, match_id LIMIT $2

-- Kickoffs from $1 until before $2.
-- name: league_window_matches
SELECT * FROM league_matches WHERE kickoff >= $1 AND kickoff < $2

-- What a user said of which match, the latest kickoff first. $2: how many
-- name: league_stakes_of_user
SELECT m.*, v.choice, v.cast_at, v.cast_ms, v.position AS vote_position,
       p.home_goals AS predicted_home_goals, p.away_goals AS predicted_away_goals, p.made_at, p.made_ms,
       p.position AS prediction_position
FROM (SELECT * FROM league_votes WHERE user_id = $1) AS v
FULL JOIN (SELECT * FROM league_predictions WHERE user_id = $1) AS p USING (match_id)
JOIN league_matches AS m USING (match_id)
ORDER BY m.kickoff DESC, m.match_id LIMIT $2

-- A page of the rating with one row more, how many users are better than its first, and when the result behind a rating came (null
-- when it was corrected since). $1: how many; $2: how many before it
-- name: league_rating_page
WITH page AS (
    SELECT user_id, points, exact, correct, judged, position FROM league_ratings
    ORDER BY points DESC, exact DESC, user_id LIMIT $1 OFFSET $2
), first AS (
    SELECT points, exact FROM page ORDER BY points DESC, exact DESC LIMIT 1
)
SELECT page.*, m.result_ms, (
    SELECT count(*) FROM league_ratings AS r, first
    WHERE r.points > first.points OR (r.points = first.points AND r.exact > first.exact)
) AS better
FROM page LEFT JOIN league_matches AS m ON m.result_position = page.position
ORDER BY page.points DESC, page.exact DESC, page.user_id

-- Those shown, and the one changed last, which may be one taken away.
-- name: league_ads
SELECT ad_id, payload, changed_ms, position FROM league_ads
WHERE payload IS NOT NULL OR ad_id = (
    SELECT ad_id FROM league_ads ORDER BY changed_ms DESC, length(position) DESC, position COLLATE "C" DESC LIMIT 1
)

-- Counts for administrators, and the newest event behind any of them.
-- name: league_counts
SELECT m.*, v.votes, p.predictions, r.rated_users, n.position
FROM (
    SELECT count(DISTINCT season) AS seasons, count(*) AS matches,
           count(*) FILTER (WHERE result_ms IS NOT NULL) AS final,
           count(*) FILTER (WHERE result_ms IS NULL AND score_ms IS NOT NULL) AS live,
           count(*) FILTER (WHERE status = 'postponed') AS postponed,
           count(*) FILTER (WHERE status = 'cancelled') AS cancelled
    FROM league_matches
) AS m
CROSS JOIN (SELECT coalesce(sum(home + draw + away), 0)::bigint AS votes FROM league_vote_counts) AS v
CROSS JOIN (SELECT count(*) AS predictions FROM league_predictions) AS p
CROSS JOIN (SELECT count(*) AS rated_users FROM league_ratings) AS r
LEFT JOIN LATERAL (
    SELECT position FROM (
        SELECT schedule_ms AS ms, schedule_position AS position FROM league_matches
        UNION ALL SELECT score_ms, score_position FROM league_matches WHERE score_ms IS NOT NULL
        UNION ALL SELECT result_ms, result_position FROM league_matches WHERE result_ms IS NOT NULL
        UNION ALL SELECT cast_ms, position FROM league_vote_counts
        UNION ALL SELECT made_ms, position FROM league_predictions
    ) AS events
    ORDER BY ms DESC, length(position) DESC, position COLLATE "C" DESC LIMIT 1
) AS n ON true
