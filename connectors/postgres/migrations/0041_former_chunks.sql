-- What chunks said before they changed or were taken out, so that a search as of a time finds what a document said then.

-- When the log took the event that made the row what it is: its text, title, URL and date, or that it is to be deleted. Null: when the
-- row was made; or later, before this was kept.
ALTER TABLE chunks ADD COLUMN content_since timestamptz;

-- From when on former texts are known: of what is stored already since the last change; null: since the namespace was made.
ALTER TABLE chunk_namespaces ADD COLUMN history_since timestamptz;
UPDATE chunk_namespaces AS n
SET history_since = greatest(n.created_at, (SELECT max(c.updated_at) FROM chunks AS c WHERE c.ns = n.ns),
                             (SELECT max(a.archived_at) FROM chunks_archive AS a WHERE a.ns = n.ns));

-- A row was found from `content_since` to before `valid_until`. Its vector and the model are those that it had at the end.
CREATE TABLE former_chunks (
    ns               text        NOT NULL,
    slot             text        NOT NULL,
    source_id        text        NOT NULL,
    chunk_no         bigint      NOT NULL,
    content          text        NOT NULL,
    title            text,
    url              text,
    content_hash     text        NOT NULL,
    embedding        vector,
    embedding_model  text,
    embedding_stale  boolean     NOT NULL,
    published_at     timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    ingest_id        text        NOT NULL,
    source_partition int         NOT NULL,
    source_offset    bigint      NOT NULL,
    content_since    timestamptz NOT NULL,
    valid_until      timestamptz NOT NULL,
    words            tsvector GENERATED ALWAYS AS (to_tsvector('english', chunk_search_text(coalesce(title, '') || ' ' || left(content, 8000)))) STORED
);
CREATE INDEX former_chunks_key ON former_chunks (ns, slot, source_id, chunk_no);
CREATE INDEX former_chunks_by_end ON former_chunks (ns, valid_until);

-- The table itself keeps what is replaced or marked, whoever changes a row: the last release too, which names no time of its own. No
-- two texts of a chunk are valid at one time: each begins when the one before it has ended. A namespace whose removals are hard
-- keeps nothing.
CREATE FUNCTION keep_former_chunk() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := coalesce(OLD.content_since, OLD.created_at);
BEGIN
    IF NEW.content_since IS NOT DISTINCT FROM OLD.content_since THEN
        NEW.content_since := NEW.updated_at;
    END IF;
    NEW.content_since := greatest(NEW.content_since, began);
    IF NOT OLD.to_delete AND began < NEW.content_since
       AND EXISTS (SELECT FROM chunk_namespaces AS n WHERE n.ns = OLD.ns AND n.removal = 'soft') THEN
        INSERT INTO former_chunks (ns, slot, source_id, chunk_no, content, title, url, content_hash, embedding, embedding_model,
                                   embedding_stale, published_at, created_at, updated_at, ingest_id, source_partition, source_offset,
                                   content_since, valid_until)
        VALUES (OLD.ns, OLD.slot, OLD.source_id, OLD.chunk_no, OLD.content, OLD.title, OLD.url, OLD.content_hash, OLD.embedding,
                OLD.embedding_model, OLD.embedding_stale, OLD.published_at, OLD.created_at, OLD.updated_at, OLD.ingest_id,
                OLD.source_partition, OLD.source_offset, began, NEW.content_since);
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER chunk_former_texts BEFORE UPDATE ON chunks FOR EACH ROW
WHEN ((NEW.content_hash, NEW.title, NEW.url, NEW.published_at, NEW.to_delete)
      IS DISTINCT FROM (OLD.content_hash, OLD.title, OLD.url, OLD.published_at, OLD.to_delete))
EXECUTE FUNCTION keep_former_chunk();
