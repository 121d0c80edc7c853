-- The indexes of vectors: how large each was for how many vectors when it was last dense, and when it was looked at.
CREATE TABLE chunk_indexes (
    name      text PRIMARY KEY,
    ns        text        NOT NULL,
    vectors   bigint      NOT NULL,
    bytes     bigint      NOT NULL,
    looked_at timestamptz NOT NULL
);
