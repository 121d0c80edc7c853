-- The spine: positions of consumers, the outbox, versions of resources, revocations.

-- Where each consumer group stands; moved in the same transaction as the effects of what was read (fencing).
CREATE TABLE positions (
    "group"   text   NOT NULL,
    topic     text   NOT NULL,
    partition int    NOT NULL,
    topic_id  text   NOT NULL,
    next      bigint NOT NULL,
    PRIMARY KEY ("group", topic, partition)
);

-- What is to be published. id is taken under the row lock of the key, so ids of one key grow in commit order.
CREATE TABLE outbox (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard     smallint NOT NULL,
    topic     text     NOT NULL,
    partition int,
    key       bytea,
    value     bytea,
    headers   bytea    NOT NULL
);
CREATE INDEX outbox_shard_id ON outbox (shard, id);

-- The version of every served resource. It only grows; the floor keeps that true for a key that was erased.
CREATE TABLE resource_versions (
    key        text PRIMARY KEY,
    version    bigint      NOT NULL,
    etag       text        NOT NULL,
    position   text        NOT NULL,
    changed_at timestamptz NOT NULL
);
CREATE TABLE version_floor (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    value bigint NOT NULL
);
INSERT INTO version_floor (value) VALUES (0);

-- Roles given to users, and the moment up to which a user's sessions are void (R2.9, R2.10); truth beside Redis.
CREATE TABLE user_roles (
    user_id    text PRIMARY KEY,
    role       text        NOT NULL CHECK (role IN ('viewer', 'editor', 'admin')),
    changed_at timestamptz NOT NULL
);
CREATE TABLE session_revocations (
    user_id    text PRIMARY KEY,
    revoked_at timestamptz NOT NULL
);
