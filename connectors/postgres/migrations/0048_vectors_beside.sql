-- The change of a namespace's model is the change of its row: from then on its searches compare vectors of `embedding_model` alone.
-- While `vectors_beside` is set, those that the model has made before stand in `chunk_next_vectors`, and the ones in `chunks` that
-- another model made count for nothing; they are exchanged by batches.
ALTER TABLE chunk_namespaces ADD COLUMN vectors_beside boolean NOT NULL DEFAULT false;
CREATE INDEX chunk_namespaces_moving ON chunk_namespaces (ns) WHERE vectors_beside;

-- What stands in `chunk_next_vectors` is always made of the chunk's text: with another text or title it goes, whoever changes the row.
CREATE FUNCTION drop_next_vector() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM chunk_next_vectors
    WHERE ns = NEW.ns AND slot = NEW.slot AND source_id = NEW.source_id AND chunk_no = NEW.chunk_no;
    RETURN NULL;
END $$;

CREATE TRIGGER chunk_next_vectors_of_texts AFTER UPDATE ON chunks FOR EACH ROW
WHEN (NEW.content_hash <> OLD.content_hash OR NEW.title IS DISTINCT FROM OLD.title)
EXECUTE FUNCTION drop_next_vector();

DELETE FROM chunk_next_vectors AS v USING chunks AS c
WHERE c.ns = v.ns AND c.slot = v.slot AND c.source_id = v.source_id AND c.chunk_no = v.chunk_no
  AND v.vector_text <> chunk_text_digest(c.title, c.content);
