-- The language of a text (ISO 639-1), by which its words are reduced to their stems; null: English, or unknown.

-- A column without a value costs no rewriting. Texts that are stored stay English until they are stored again, or until
-- `highwater init --languages` has found theirs.
ALTER TABLE insights ADD COLUMN language text;
ALTER TABLE chunks ADD COLUMN language text;
ALTER TABLE former_chunks ADD COLUMN language text;

-- How PostgreSQL reads a language. A language that is added here later has no rows before, so no index is wrong.
CREATE FUNCTION search_configuration(language text) RETURNS regconfig LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE language
    WHEN 'ar' THEN 'pg_catalog.arabic'::regconfig
    WHEN 'de' THEN 'pg_catalog.german'::regconfig
    WHEN 'el' THEN 'pg_catalog.greek'::regconfig
    WHEN 'es' THEN 'pg_catalog.spanish'::regconfig
    WHEN 'fr' THEN 'pg_catalog.french'::regconfig
    WHEN 'hi' THEN 'pg_catalog.hindi'::regconfig
    WHEN 'hy' THEN 'pg_catalog.armenian'::regconfig
    WHEN 'it' THEN 'pg_catalog.italian'::regconfig
    WHEN 'nl' THEN 'pg_catalog.dutch'::regconfig
    WHEN 'pt' THEN 'pg_catalog.portuguese'::regconfig
    WHEN 'ro' THEN 'pg_catalog.romanian'::regconfig
    WHEN 'ru' THEN 'pg_catalog.russian'::regconfig
    WHEN 'sv' THEN 'pg_catalog.swedish'::regconfig
    WHEN 'ta' THEN 'pg_catalog.tamil'::regconfig
    WHEN 'tr' THEN 'pg_catalog.turkish'::regconfig
    ELSE 'pg_catalog.english'::regconfig
END;

-- Whether a chunk has each of these regular expressions, in any case, and none of those. Null: nothing is asked.
CREATE FUNCTION chunk_has(title text, content text, required text[], excluded text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 100
RETURN (required IS NULL OR coalesce(title || E'\n', '') || content ~* ALL (required))
       AND (excluded IS NULL OR NOT coalesce(title || E'\n', '') || content ~* ANY (excluded));

-- In which of these languages a namespace has texts, now or formerly; English always.
CREATE FUNCTION search_configurations(of_ns text, languages text[]) RETURNS SETOF regconfig LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT 'pg_catalog.english'::regconfig
    UNION
    SELECT search_configuration(l.language) FROM unnest(languages) AS l (language)
    WHERE EXISTS (SELECT FROM chunks AS c WHERE c.ns = of_ns AND c.language = l.language)
       OR EXISTS (SELECT FROM former_chunks AS c WHERE c.ns = of_ns AND c.language = l.language)
$$;

-- The words of a chunk. Computed by a trigger from here on: the expression of a generated column cannot be changed without
-- writing the table anew. Values that are there are kept, and the last release's rows get theirs too.
CREATE FUNCTION chunk_text_words(language text, title text, content text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN to_tsvector(search_configuration(language), chunk_search_text(coalesce(title, '') || ' ' || left(content, 8000)));

ALTER TABLE chunks ALTER COLUMN words DROP EXPRESSION;
ALTER TABLE former_chunks ALTER COLUMN words DROP EXPRESSION;

CREATE FUNCTION set_chunk_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.words := chunk_text_words(NEW.language, NEW.title, NEW.content);
    RETURN NEW;
END $$;

CREATE TRIGGER chunk_words_of_text BEFORE INSERT OR UPDATE OF title, content, language ON chunks
FOR EACH ROW EXECUTE FUNCTION set_chunk_words();
CREATE TRIGGER former_chunk_words_of_text BEFORE INSERT OR UPDATE OF title, content, language ON former_chunks
FOR EACH ROW EXECUTE FUNCTION set_chunk_words();

COMMENT ON COLUMN chunks.words IS 'computed';
COMMENT ON COLUMN former_chunks.words IS 'computed';

-- A former text keeps its language; the rest is as in 0041.
CREATE OR REPLACE FUNCTION keep_former_chunk() RETURNS trigger LANGUAGE plpgsql AS $$
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
                                   content_since, valid_until, language)
        VALUES (OLD.ns, OLD.slot, OLD.source_id, OLD.chunk_no, OLD.content, OLD.title, OLD.url, OLD.content_hash, OLD.embedding,
                OLD.embedding_model, OLD.embedding_stale, OLD.published_at, OLD.created_at, OLD.updated_at, OLD.ingest_id,
                OLD.source_partition, OLD.source_offset, began, NEW.content_since, OLD.language);
    END IF;
    RETURN NEW;
END $$;
