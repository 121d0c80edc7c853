-- A chunk that moves to another number within its document keeps its vector. A stale vector is still one of the text that stood
-- there before, so the row says which text that was: the chunk that has this text now takes the vector.

-- What a vector is made of, in 32 octets.
CREATE FUNCTION chunk_text_digest(title text, content text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(convert_to(coalesce(nullif(title, '') || E'\n\n', '') || content, 'UTF8'));

-- The digest of the text that the row's vector was made of, where that is not the row's text; null: it is, or it is unknown (a
-- stale vector without a digest).
ALTER TABLE chunks ADD COLUMN vector_text bytea;

-- The table itself remembers it, whoever changes a row: the last release too.
CREATE FUNCTION keep_chunk_vector_text() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.embedding IS NULL OR OLD.embedding_stale AND NOT NEW.embedding_stale OR NEW.embedding IS DISTINCT FROM OLD.embedding THEN
        NEW.vector_text := NULL;
    ELSIF OLD.vector_text IS NULL AND NOT OLD.embedding_stale
          AND (NEW.content_hash <> OLD.content_hash OR NEW.title IS DISTINCT FROM OLD.title) THEN
        NEW.vector_text := chunk_text_digest(OLD.title, OLD.content);
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER chunk_vector_texts BEFORE UPDATE ON chunks FOR EACH ROW
WHEN (NEW.embedding_stale OR OLD.vector_text IS NOT NULL OR NEW.title IS DISTINCT FROM OLD.title)
EXECUTE FUNCTION keep_chunk_vector_text();

-- Whether a source has such chunks is asked for with each batch of vectors.
CREATE INDEX chunks_moved ON chunks (ns, slot, source_id, source_offset)
    WHERE vector_text IS NOT NULL AND embedding_stale AND NOT to_delete;
