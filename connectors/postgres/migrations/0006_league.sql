-- Leagues: matches, votes, posts, ratings; documents that are served, and leases on copies of them.

-- A season exists once a match of it was scheduled. Its row is locked by whoever changes a match of it.
CREATE TABLE league_seasons (
    season   text PRIMARY KEY,
    revision bigint NOT NULL DEFAULT 0
);

-- *_ms and *_position: broker time and position of the event behind a part of a match; NULL = nothing told yet.
CREATE TABLE league_matches (
    match_id          text PRIMARY KEY,
    season            text        NOT NULL REFERENCES league_seasons (season),
    round             text        NOT NULL,
    kickoff           timestamptz NOT NULL,
    time_unknown      boolean     NOT NULL,
    status            text        NOT NULL,
    home              text        NOT NULL,
    away              text        NOT NULL,
    home_goals        int,
    away_goals        int,
    minute            int,
    finalized_at      timestamptz,
    schedule_ms       bigint      NOT NULL,
    schedule_position text        NOT NULL,
    score_ms          bigint,
    score_position    text,
    result_ms         bigint,
    result_position   text
);
CREATE INDEX league_matches_season ON league_matches (season, kickoff, match_id);
CREATE INDEX league_matches_kickoff ON league_matches (kickoff);
CREATE INDEX league_matches_home ON league_matches (home, kickoff);
CREATE INDEX league_matches_away ON league_matches (away, kickoff);
CREATE INDEX league_matches_open ON league_matches (kickoff) WHERE result_ms IS NULL;

-- The last vote and the last prediction of a user for a match; *_ms orders them.
CREATE TABLE league_votes (
    match_id text NOT NULL REFERENCES league_matches (match_id),
    user_id  text NOT NULL,
    choice   text NOT NULL CHECK (choice IN ('home', 'draw', 'away')),
    cast_at  timestamptz NOT NULL,
    cast_ms  bigint NOT NULL,
    position text NOT NULL,
    PRIMARY KEY (match_id, user_id)
);
CREATE INDEX league_votes_user ON league_votes (user_id);
CREATE TABLE league_predictions (
    match_id   text NOT NULL REFERENCES league_matches (match_id),
    user_id    text NOT NULL,
    home_goals int  NOT NULL,
    away_goals int  NOT NULL,
    made_at    timestamptz NOT NULL,
    made_ms    bigint NOT NULL,
    position   text NOT NULL,
    PRIMARY KEY (match_id, user_id)
);
CREATE INDEX league_predictions_user ON league_predictions (user_id);
-- Votes per match, kept with the votes; and the event that last changed them.
CREATE TABLE league_vote_counts (
    match_id text PRIMARY KEY REFERENCES league_matches (match_id),
    home     bigint NOT NULL,
    draw     bigint NOT NULL,
    away     bigint NOT NULL,
    cast_ms  bigint NOT NULL,
    position text   NOT NULL
);

-- A comment is named by its position, so a repeat changes nothing. The latest 120 of a match are shown (R4.18).
CREATE TABLE league_comments (
    match_id  text NOT NULL REFERENCES league_matches (match_id),
    posted_ms bigint NOT NULL,
    position  text NOT NULL,
    user_id   text NOT NULL,
    body      text NOT NULL,
    posted_at timestamptz NOT NULL,
    PRIMARY KEY (match_id, position)
);
CREATE INDEX league_comments_latest ON league_comments (match_id, posted_ms DESC, position DESC);

-- Deleted ones stay as rows without a payload: what came earlier must not bring them back.
CREATE TABLE league_ads (
    ad_id      text PRIMARY KEY,
    payload    text,
    changed_at timestamptz NOT NULL,
    changed_ms bigint NOT NULL,
    position   text NOT NULL
);

-- The rating (R4.22): three points for an exact result, one for the right outcome.
CREATE TABLE league_ratings (
    user_id  text PRIMARY KEY,
    points   bigint NOT NULL,
    exact    bigint NOT NULL,
    correct  bigint NOT NULL,
    judged   bigint NOT NULL,
    position text NOT NULL
);
CREATE INDEX league_ratings_order ON league_ratings (points DESC, exact DESC, user_id);
-- The last full recalculation, one row.
CREATE TABLE league_rating_runs (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    number bigint NOT NULL
);

-- A document as it was last made; its version is in resource_versions under the same key. `coming` is the version that somebody
-- is about to give it: copies of anything older are not served from memory any more.
CREATE TABLE documents (
    key      text PRIMARY KEY,
    version  bigint      NOT NULL,
    coming   bigint      NOT NULL,
    payload  bytea       NOT NULL,
    built_at timestamptz NOT NULL
);

-- Which process may serve copies from its own memory, until when, and which barrier it has seen (connectors/stores/leases.py).
CREATE TABLE copy_leases (
    holder     text PRIMARY KEY,
    expires_at timestamptz NOT NULL,
    barrier    bigint NOT NULL
);
CREATE SEQUENCE copy_barrier;
