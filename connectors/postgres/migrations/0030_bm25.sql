-- Words of chunks are ranked by BM25 (Robertson and Zaragoza 2009), which needs to know how many chunks have a word.

-- The text in which words are looked for, of chunks and of questions: names such as os.path_exists are taken apart.
CREATE FUNCTION chunk_search_text(whole text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(whole, '[!-/:-@[-`{-~]+', ' ', 'g');

-- How long it is. In octets, which are known without reading a text that is stored elsewhere.
CREATE FUNCTION chunk_text_octets(title text, content text) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(octet_length(title), 0) + least(octet_length(content), 8000);

-- The column stays what it is, and the last release's searches work on it. The table and its indexes are written anew.
SET LOCAL maintenance_work_mem = '256MB';
ALTER TABLE chunks ALTER COLUMN words
    SET EXPRESSION AS (to_tsvector('english', chunk_search_text(coalesce(title, '') || ' ' || left(content, 8000))));

-- How many chunks have a word, as sums of what each statement changed: rows are added and later folded into one, so that no two
-- transactions wait for the row of a common word. The word '' stands for all chunks, with the octets of their texts. Chunks that
-- are to be deleted do not count.
CREATE TABLE chunk_words (
    ns     text   NOT NULL,
    word   text   COLLATE "C" NOT NULL,
    chunks bigint NOT NULL,
    octets bigint NOT NULL
);
CREATE INDEX chunk_words_by_word ON chunk_words (ns, word) INCLUDE (chunks, octets);

INSERT INTO chunk_words (ns, word, chunks, octets)
SELECT ns, word, count(*), coalesce(sum(octets) FILTER (WHERE word = ''), 0)
FROM (SELECT ns, unnest(array_append(tsvector_to_array(words), '')) AS word, chunk_text_octets(title, content) AS octets
      FROM chunks WHERE NOT to_delete) AS counted
GROUP BY ns, word;

-- Keeps the sums in the transaction that changes chunks, whoever changes them: the last release too. Of an update only the rows
-- whose words change are counted; most updates bring vectors.
CREATE FUNCTION count_chunk_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chunk_words (ns, word, chunks, octets)
        SELECT ns, word, count(*), coalesce(sum(octets) FILTER (WHERE word = ''), 0)
        FROM (SELECT ns, unnest(array_append(tsvector_to_array(words), '')) AS word, chunk_text_octets(title, content) AS octets
              FROM added WHERE NOT to_delete) AS counted
        GROUP BY ns, word;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chunk_words (ns, word, chunks, octets)
        SELECT ns, word, -count(*), -coalesce(sum(octets) FILTER (WHERE word = ''), 0)
        FROM (SELECT ns, unnest(array_append(tsvector_to_array(words), '')) AS word, chunk_text_octets(title, content) AS octets
              FROM gone WHERE NOT to_delete) AS counted
        GROUP BY ns, word;
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO chunk_words (ns, word, chunks, octets)
        SELECT ns, word, sum(number), coalesce(sum(number * octets) FILTER (WHERE word = ''), 0)
        FROM (
            SELECT ns, number, octets, unnest(array_append(tsvector_to_array(words), '')) AS word
            FROM (
                SELECT a.ns, a.words, chunk_text_octets(a.title, a.content) AS octets, 1 AS number
                FROM added AS a
                WHERE NOT a.to_delete AND NOT EXISTS (
                    SELECT FROM gone AS g
                    WHERE g.ns = a.ns AND g.slot = a.slot AND g.source_id = a.source_id AND g.chunk_no = a.chunk_no
                      AND NOT g.to_delete AND g.words = a.words
                      AND chunk_text_octets(g.title, g.content) = chunk_text_octets(a.title, a.content)
                )
                UNION ALL
                SELECT g.ns, g.words, chunk_text_octets(g.title, g.content), -1
                FROM gone AS g
                WHERE NOT g.to_delete AND NOT EXISTS (
                    SELECT FROM added AS a
                    WHERE g.ns = a.ns AND g.slot = a.slot AND g.source_id = a.source_id AND g.chunk_no = a.chunk_no
                      AND NOT a.to_delete AND g.words = a.words
                      AND chunk_text_octets(g.title, g.content) = chunk_text_octets(a.title, a.content)
                )
            ) AS changed
        ) AS counted
        GROUP BY ns, word
        HAVING sum(number) <> 0 OR coalesce(sum(number * octets) FILTER (WHERE word = ''), 0) <> 0;
    ELSE
        DELETE FROM chunk_words;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER chunk_words_of_inserts AFTER INSERT ON chunks REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION count_chunk_words();
CREATE TRIGGER chunk_words_of_updates AFTER UPDATE ON chunks REFERENCING OLD TABLE AS gone NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION count_chunk_words();
CREATE TRIGGER chunk_words_of_deletes AFTER DELETE ON chunks REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION count_chunk_words();
CREATE TRIGGER chunk_words_of_truncates AFTER TRUNCATE ON chunks
FOR EACH STATEMENT EXECUTE FUNCTION count_chunk_words();

-- What words weigh in a similarity in hybrid mode, by namespace; the rest is what vectors say.
ALTER TABLE chunk_namespaces ADD COLUMN text_share double precision NOT NULL DEFAULT 0.4;
