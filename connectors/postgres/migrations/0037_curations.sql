-- What readers say of their clusters: names, merges and splits, which hold until they are undone.

CREATE TABLE cluster_curations (
    user_id          text   NOT NULL,
    curation_id      text   NOT NULL, -- of what it does, so that the same one said twice is one
    curation         json   NOT NULL,
    arrived_ms       bigint NOT NULL,
    source_partition int    NOT NULL, -- of feeds.clusters-curated
    source_offset    bigint NOT NULL,
    PRIMARY KEY (user_id, curation_id)
);

-- The user's revision with which the curations changed last, and up to which the current version accounts for them.
ALTER TABLE user_stats
    ADD COLUMN curated_revision bigint NOT NULL DEFAULT 0,
    ADD COLUMN curated_shown    bigint NOT NULL DEFAULT 0;

ALTER TABLE user_clusters
    ADD COLUMN found     json,                          -- the clusters before the curations; null: the same ones
    ADD COLUMN curations text[] NOT NULL DEFAULT '{}';  -- positions of those that it was made with, in their order
