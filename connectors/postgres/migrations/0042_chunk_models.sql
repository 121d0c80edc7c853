-- A namespace gets vectors of another model: of which, and when that will have made them all. Until then its searches compare by
-- `embedding_model`; then all its vectors change at once.
ALTER TABLE chunk_namespaces ADD COLUMN next_model text, ADD COLUMN next_due_at timestamptz;

-- Vectors of the next model. In `chunks` each would rewrite a row with its indexes, twice.
CREATE TABLE chunk_next_vectors (
    ns          text   NOT NULL,
    slot        text   NOT NULL,
    source_id   text   NOT NULL,
    chunk_no    bigint NOT NULL,
    model       text   NOT NULL,
    vector_text bytea  NOT NULL, -- the digest of the text that the vector was made of (`chunk_text_digest`)
    embedding   vector NOT NULL,
    PRIMARY KEY (ns, slot, source_id, chunk_no),
    FOREIGN KEY (ns, slot, source_id, chunk_no) REFERENCES chunks ON DELETE CASCADE
);
