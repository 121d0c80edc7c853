-- Which start of the server was compared with the log: a server that starts may hold an older state than the log knows (a standby
-- that was behind, a copy of the data folder). No role works on it before it was compared (`connectors/backup/comparing.py`).
-- `caught_up_ms`: when it last caught up with a log that was ahead; consumers read their positions again when it changes.
CREATE TABLE compared_servers (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    started_at   timestamptz NOT NULL,
    caught_up_ms bigint      NOT NULL DEFAULT 0
);
INSERT INTO compared_servers (started_at) SELECT pg_postmaster_start_time();

-- No version up to this one is assigned again, to any resource: versions that a lost database assigned may have been seen, and be in
-- no log.
ALTER TABLE version_floor ADD COLUMN lost bigint NOT NULL DEFAULT 0;

-- Where the results of the log began that the database lacked: an interrupted catch-up continues with them, though positions moved.
ALTER TABLE restore_progress ADD COLUMN starts text;
