-- Bases: what the vectors of insights are made of. Vectors of two bases are never compared.

CREATE TABLE bases (
    basis_id    text PRIMARY KEY,
    kind        text        NOT NULL CHECK (kind IN ('hashed', 'fitted', 'remote')),
    content     bytea       NOT NULL,       -- a fitted basis' numbers; nothing of the others, which their name says whole
    corpus_size bigint      NOT NULL,       -- insights in the store when it was made
    created_at  timestamptz NOT NULL
);
INSERT INTO bases VALUES ('hashed-text-384.v1', 'hashed', '', 0, 'epoch');

-- Every insight without a vector from outside has one in the active basis. While another is rolled out, new insights get
-- a vector in both.
CREATE TABLE active_basis (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    basis_id   text        NOT NULL REFERENCES bases,
    next_id    text REFERENCES bases,       -- the one that is rolled out; null when none is
    changed_at timestamptz NOT NULL
);
INSERT INTO active_basis (basis_id, changed_at) VALUES ('hashed-text-384.v1', 'epoch');

-- How far the sweep over all insights is: first vectors in the next basis, after the switch their move into place.
CREATE TABLE reembedding (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    phase      text   NOT NULL CHECK (phase IN ('embed', 'move')),
    swept_to   text   NOT NULL,             -- insight_id up to which it is done
    reembedded bigint NOT NULL
);

ALTER TABLE insights
    ADD COLUMN next_embedding bytea,        -- in the basis that is rolled out
    ADD COLUMN next_model     text;         -- its basis; set alone while the vector is being made
CREATE INDEX insights_awaited ON insights (channel_id, seq)
    WHERE next_embedding IS NULL AND excluded_at IS NULL AND (embedding IS NULL OR next_model IS NOT NULL);
