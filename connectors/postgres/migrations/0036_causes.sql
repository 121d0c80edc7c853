-- Events behind what had none: the one that erased a user, and the one that brought the first match of a season.
ALTER TABLE user_erasures ADD COLUMN position text;
ALTER TABLE league_seasons ADD COLUMN created_ms bigint, ADD COLUMN position text;

-- The earliest date that a match of a season still has: the first one of all may have been moved since.
UPDATE league_seasons AS s SET created_ms = m.schedule_ms, position = m.schedule_position
FROM (SELECT DISTINCT ON (season) season, schedule_ms, schedule_position FROM league_matches
      ORDER BY season, schedule_ms, length(schedule_position), schedule_position COLLATE "C") AS m
WHERE m.season = s.season;
