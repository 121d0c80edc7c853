-- What the API asks of leagues beside documents: facts for a write, and lists.

-- name: match_of_write
SELECT season, kickoff FROM league_matches WHERE match_id = $1

-- The teams and rounds of a season, as its matches name them.
-- name: names_of_season
SELECT DISTINCT home, away, round FROM league_matches WHERE season = $1

-- One row with a null when nothing comes after $1. Seasons are never taken away, so their number is a version of the list, and
-- the event that brought the newest is behind it. $1 the season before the page, $2 how many
-- name: seasons_after
SELECT page.season, known.seasons, newest.position
FROM (SELECT count(*) AS seasons FROM league_seasons) AS known
LEFT JOIN LATERAL (
    SELECT position FROM league_seasons WHERE position IS NOT NULL
    ORDER BY created_ms DESC, length(position) DESC, position COLLATE "C" DESC LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (SELECT season FROM league_seasons WHERE season > $1 ORDER BY season LIMIT $2) AS page ON true

-- The last version of a resource, also of a document that was taken away.
-- name: version_of_resource
SELECT version FROM resource_versions WHERE key = $1

-- Connections of this database that wait for a lock, its transactions, statements that run for more than $1 ms by now, and whether
-- statements are measured.
-- name: database_counters
SELECT s.xact_commit + s.xact_rollback AS transactions,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = s.datname AND wait_event_type = 'Lock') AS lock_waits,
       (SELECT count(*) FROM pg_stat_activity
        WHERE datname = s.datname AND state = 'active' AND query_start < clock_timestamp() - make_interval(secs => $1::float8 / 1000)
              AND backend_type = 'client backend') AS slow_now,
       to_regclass('pg_stat_statements') IS NOT NULL AS has_statements
FROM pg_stat_database AS s WHERE s.datname = current_database()

-- Statements that take longer than $1 ms on average; only where the extension is there.
-- name: slow_statements
SELECT count(*) FROM pg_stat_statements WHERE mean_exec_time > $1
