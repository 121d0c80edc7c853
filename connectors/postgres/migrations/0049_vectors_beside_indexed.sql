-- A change of a namespace's model keeps its searches indexed: `chunk_next_vectors` has an index before the change, and all vectors of the
-- model stand there until `chunks` has its own.

-- The change waits for an index: of `chunk_next_vectors` before it, of `chunks` at its end.
ALTER TABLE chunk_namespaces ADD COLUMN index_awaited boolean NOT NULL DEFAULT false;

-- While `vectors_beside` is set, a vector that comes to `chunks` comes to `chunk_next_vectors` too, whoever writes it. A statement asks
-- once whether there is such a namespace, which is seldom. A vector that stands there already (an exchange) is not written again.
CREATE FUNCTION keep_vectors_beside() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM chunk_namespaces WHERE vectors_beside) THEN
        INSERT INTO chunk_next_vectors (ns, slot, source_id, chunk_no, model, vector_text, embedding)
        SELECT a.ns, a.slot, a.source_id, a.chunk_no, n.embedding_model,
               coalesce(a.vector_text, chunk_text_digest(a.title, a.content)), a.embedding
        FROM added AS a JOIN chunk_namespaces AS n ON n.ns = a.ns
        WHERE n.vectors_beside AND a.embedding IS NOT NULL AND a.embedding_model IN ('sent', n.embedding_model)
          AND NOT EXISTS (
              SELECT FROM chunk_next_vectors AS v
              WHERE v.ns = a.ns AND v.slot = a.slot AND v.source_id = a.source_id AND v.chunk_no = a.chunk_no
                AND v.model = n.embedding_model AND v.embedding = a.embedding)
        ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
        SET model = EXCLUDED.model, vector_text = EXCLUDED.vector_text, embedding = EXCLUDED.embedding;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER chunk_vectors_beside_of_inserts AFTER INSERT ON chunks REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION keep_vectors_beside();
CREATE TRIGGER chunk_vectors_beside_of_updates AFTER UPDATE ON chunks REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION keep_vectors_beside();

-- Of changes that the last release has begun, vectors have moved already.
INSERT INTO chunk_next_vectors (ns, slot, source_id, chunk_no, model, vector_text, embedding)
SELECT c.ns, c.slot, c.source_id, c.chunk_no, n.embedding_model, coalesce(c.vector_text, chunk_text_digest(c.title, c.content)),
       c.embedding
FROM chunks AS c JOIN chunk_namespaces AS n ON n.ns = c.ns
WHERE n.vectors_beside AND c.embedding IS NOT NULL AND c.embedding_model IN ('sent', n.embedding_model)
ON CONFLICT (ns, slot, source_id, chunk_no) DO UPDATE
SET model = EXCLUDED.model, vector_text = EXCLUDED.vector_text, embedding = EXCLUDED.embedding;
