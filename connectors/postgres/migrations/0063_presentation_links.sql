-- Links by which anybody reads one deck without a key. Only the link contains its token; here is the SHA-256 of it.
CREATE TABLE presentation_links (
    link_id         uuid PRIMARY KEY,
    presentation_id uuid        NOT NULL REFERENCES presentations ON DELETE CASCADE,
    token_hash      text        NOT NULL UNIQUE,
    created_at      timestamptz NOT NULL
);
CREATE INDEX presentation_links_of_deck ON presentation_links (presentation_id, created_at);
