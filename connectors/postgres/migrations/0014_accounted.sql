-- What a user's clusters account for beside their high-water marks: the set of channels, retractions, and since when.

-- Insights of a channel that were retracted after they were stored, and for each of them which of these it was.
ALTER TABLE channels ADD COLUMN retractions bigint NOT NULL DEFAULT 0;
ALTER TABLE insights ADD COLUMN retraction bigint;
CREATE INDEX insights_retraction ON insights (channel_id, retraction) WHERE retraction IS NOT NULL;

ALTER TABLE user_cluster_hwm
    ADD COLUMN is_shown    boolean NOT NULL DEFAULT false, -- whether it was in the set of channels answered for last
    ADD COLUMN retractions bigint  NOT NULL DEFAULT 0;     -- how many of the channel's are accounted for

UPDATE user_cluster_hwm AS h SET is_shown = true
FROM user_stats AS u JOIN user_clusters AS v ON v.user_id = u.user_id AND v.cluster_version = u.cluster_version
WHERE h.user_id = u.user_id AND (v.hwm::jsonb) ? h.channel_id;

-- High-water marks with the last moment at which each was reached, one a day: an insight stays in a user's clusters for the
-- window's length from its own time, or from when they first held it, whichever ends later.
CREATE TABLE user_cluster_marks (
    user_id    text        NOT NULL,
    channel_id text        NOT NULL,
    day        date        NOT NULL,
    last_seq   bigint      NOT NULL,
    marked_at  timestamptz NOT NULL,
    PRIMARY KEY (user_id, channel_id, day)
);

-- What was clustered before marks were dated counts by its own time alone, as it did then.
INSERT INTO user_cluster_marks (user_id, channel_id, day, last_seq, marked_at)
SELECT user_id, channel_id, date '1970-01-01', last_seq, timestamptz '1970-01-01 00:00:00+00' FROM user_cluster_hwm;
