-- A log that lost its tail. Kafka does not sync each record, PostgreSQL syncs each transaction, so a power loss of a single broker, or
-- an unclean election, can leave positions beyond the end of the log, or before records that are not those that were read.

-- The leader epoch of the record before `next`: Kafka tells where the log of that epoch ends. It holds only while `epoch_at` = `next`,
-- since commands and earlier versions move `next` alone.
ALTER TABLE positions ADD COLUMN leader_epoch int, ADD COLUMN epoch_at bigint;

-- One row a loss, found by the first that met it. Nobody reads or writes the partition until `repaired_at`.
CREATE TABLE log_truncations (
    topic       text        NOT NULL,
    partition   int         NOT NULL,
    found_at    timestamptz NOT NULL,
    found_by    text        NOT NULL, -- a consumer group, or a role
    end_offset  bigint      NOT NULL, -- the first offset whose record was lost
    next        bigint      NOT NULL, -- one past the last offset that was read before
    filled_to   bigint,               -- one past the last offset that is given to no record again
    missing     bigint,               -- how many of the lost records could not be recreated
    repaired_at timestamptz,
    PRIMARY KEY (topic, partition, found_at)
);
CREATE UNIQUE INDEX log_truncations_open ON log_truncations (topic, partition) WHERE repaired_at IS NULL;
