-- Rebuilds that the machine failed and that are requested again: since when, why, and how often in a row. Null: the last one was not.
ALTER TABLE user_stats
    ADD COLUMN delayed_at   timestamptz,
    ADD COLUMN delay_reason text,
    ADD COLUMN delays       integer NOT NULL DEFAULT 0;
