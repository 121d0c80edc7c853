-- Up to when what a user said of matches is void. Votes wait for their window and a log is replayed: what was said before an erasure
-- may be read after it. The user is known by a hash (SHA-256), since an erased user's id is not kept.
CREATE TABLE league_erasures (
    user_hash bytea PRIMARY KEY,
    erased_ms bigint NOT NULL
);
