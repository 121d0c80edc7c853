-- Partitions that a consumer group has stopped reading because too many of their records could not be processed. The position
-- stays where it is in `positions`; `next` repeats it for whoever looks. Written in the transaction that stores the good records
-- before it, so a restart finds the partition stopped.
CREATE TABLE stopped_partitions (
    "group"    text        NOT NULL,
    topic      text        NOT NULL,
    partition  int         NOT NULL,
    next       bigint      NOT NULL,
    stopped_at timestamptz NOT NULL,
    reason     text        NOT NULL, -- the most frequent one among the bad records
    dead       int         NOT NULL, -- bad records among the last `events`
    events     int         NOT NULL,
    park_until bigint,               -- set by an operator: below this offset bad records go to the dead letters
    PRIMARY KEY ("group", topic, partition)
);
