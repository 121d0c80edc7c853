-- Leases: who owns what, until when by this server's clock. Ownership ends with its time, or with the session it was taken on.
CREATE TABLE leases (
    kind          text        NOT NULL,
    name          text        NOT NULL,
    owner         text        NOT NULL,
    epoch         bigint      NOT NULL,
    expires_at    timestamptz NOT NULL,
    session_pid   int,
    session_start timestamptz,
    PRIMARY KEY (kind, name)
);

-- Whether a lease is somebody's. A session of another role shows no start: then its number alone says that it is there.
CREATE FUNCTION lease_is_live(expires_at timestamptz, session_pid int, session_start timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT expires_at > clock_timestamp() AND (session_pid IS NULL OR EXISTS (
        SELECT FROM pg_stat_get_activity(session_pid) AS a
        WHERE a.pid = session_pid AND (a.backend_start IS NULL OR a.backend_start = session_start)))
$$;

-- The highest epoch of each of the outbox's shards that a group has read in a partition, and where it began
-- (streams/relay_epochs.py); moved in the same transaction as the position.
CREATE TABLE relay_epochs (
    "group"   text     NOT NULL,
    topic     text     NOT NULL,
    partition int      NOT NULL,
    shard     smallint NOT NULL,
    epoch     bigint   NOT NULL,
    "offset"  bigint   NOT NULL,
    PRIMARY KEY ("group", topic, partition, shard)
);
