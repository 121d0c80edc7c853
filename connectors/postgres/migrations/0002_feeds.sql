-- Feeds: R0.15 to R0.21.

CREATE TABLE channels (
    channel_id      text PRIMARY KEY,
    current_seq     bigint NOT NULL DEFAULT 0,
    last_insight_ts timestamptz,            -- largest event time, as producers tell it
    last_arrived_at timestamptz,            -- largest broker time; what recovery of dirty:channels goes by (R0.43)
    announced_seq   bigint NOT NULL DEFAULT 0 -- head that the fan-out has last told subscribers of
);
CREATE INDEX channels_last_arrived_at ON channels (last_arrived_at);

CREATE TABLE insights (
    insight_id       text PRIMARY KEY,
    channel_id       text        NOT NULL,
    seq              bigint      NOT NULL,
    ts               timestamptz NOT NULL,
    arrived_at       timestamptz NOT NULL,
    text             text,
    url              text,
    embedding        bytea,                 -- little-endian float32; null while it is being made
    embedding_model  text,
    retracted_at     timestamptz,
    excluded_at      timestamptz,           -- its embedding could not be made in time (R0.14)
    source_partition int         NOT NULL,  -- of feeds.insight-ingested: the event behind the row
    source_offset    bigint      NOT NULL,
    UNIQUE (channel_id, seq)
);
CREATE INDEX insights_channel_ts ON insights (channel_id, ts);
CREATE INDEX insights_retracted ON insights (channel_id, retracted_at) WHERE retracted_at IS NOT NULL;
CREATE INDEX insights_unembedded ON insights (channel_id, seq) WHERE embedding IS NULL AND excluded_at IS NULL;

-- Retractions that came before their insight: other topic, other partition, no order between them.
CREATE TABLE early_retractions (
    insight_id   text        NOT NULL,
    channel_id   text        NOT NULL,
    retracted_at timestamptz NOT NULL,
    PRIMARY KEY (insight_id, channel_id)
);

CREATE TABLE subscriptions (
    user_id    text    NOT NULL,
    channel_id text    NOT NULL,
    subscribed boolean NOT NULL,
    changed_ms bigint  NOT NULL,            -- broker time of the event that said so; a later one wins
    PRIMARY KEY (user_id, channel_id)
);
CREATE INDEX subscriptions_channel ON subscriptions (channel_id, user_id) WHERE subscribed;

CREATE TABLE user_cluster_hwm (
    user_id    text   NOT NULL,
    channel_id text   NOT NULL,
    last_seq   bigint NOT NULL,
    PRIMARY KEY (user_id, channel_id)
);

CREATE TABLE user_stats (
    user_id                 text PRIMARY KEY,
    pending_insights_count  bigint NOT NULL DEFAULT 0, -- a snapshot of the last rebuild; decisions use the formula
    last_clustered_at       timestamptz,
    last_active_at          timestamptz,
    last_enqueued_at        timestamptz,
    last_checked_at         timestamptz,
    cluster_version         bigint NOT NULL DEFAULT 0,
    plan                    text   NOT NULL DEFAULT 'free',
    plan_changed_ms         bigint NOT NULL DEFAULT 0,
    revision                bigint NOT NULL DEFAULT 0, -- broker time in ms, or one more: grows over an erasure too
    subscriptions_replaced_ms bigint NOT NULL DEFAULT 0,
    in_flight               text,                      -- position of the request being worked on
    in_flight_until         timestamptz,
    last_request            text,                      -- position of the request last ended; a repeat of it is void
    caused_by               text                       -- position of the event that last changed the row
);
CREATE INDEX user_stats_last_clustered ON user_stats (last_clustered_at);

-- One row a version, the last few kept, so that a reader never sees half of one (R0.20).
CREATE TABLE user_clusters (
    user_id         text        NOT NULL,
    cluster_version bigint      NOT NULL,
    clusters        json        NOT NULL,
    noise           int         NOT NULL,
    dataset_size    int         NOT NULL,
    omitted         bigint      NOT NULL,
    hwm             json        NOT NULL,
    updated_at      timestamptz NOT NULL,
    caused_by       text        NOT NULL,
    PRIMARY KEY (user_id, cluster_version)
);

-- The generated feed of a user (R0.21).
CREATE TABLE feed_documents (
    user_id         text PRIMARY KEY,
    cluster_version bigint      NOT NULL,
    built_at        timestamptz NOT NULL,
    ttl_seconds     double precision NOT NULL,
    payload         bytea       NOT NULL,
    stale           boolean     NOT NULL DEFAULT false
);
