-- An answer that was withdrawn is found no more; its entry in Redis goes with the next one that is kept.
ALTER TABLE semantic_vectors ADD COLUMN is_withdrawn boolean NOT NULL DEFAULT false;
CREATE INDEX semantic_vectors_withdrawn ON semantic_vectors (hash) WHERE is_withdrawn;
-- What was kept so far does not say of whom and of what it is; it would be found for a day at most.
UPDATE semantic_vectors SET is_withdrawn = true;
