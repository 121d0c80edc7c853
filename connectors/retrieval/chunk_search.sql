-- Searches of chunks. All of a search's parameters stand in the same places, whichever statement it runs:
-- $1 namespace, $2 vector (null: none), $3 a tsquery of chunks with any of the words (null: they do not count), $4 slot (null: any), $5 sources (null: any),
-- $6 the oldest that is found (null: any), $7 the oldest that has a score (null: any), $8 the moment, $9 alpha, $10 beta,
-- $11 half-life in days, $12 share of words in a similarity, $13 the newest that is found (null: any), $14 a tsquery for each word,
-- $15 their weights, $16 and $17 the saturation and what each octet of a text adds to it, $18 the ranks that tell how often a chunk
-- has a word, $19 how many stems each word has (0: a name as a whole), $20 how many of one source (null: any number), $21 whose texts:
-- those of this time (null: those of now), $22 a tsquery of the chunks that are searched (null: any), $23 regular
-- expressions that each text has, $24 such that none has (null: nothing), $25 how many.
-- A cosine with a vector of zeros is not a number and counts as 0; without a vector there is none (null), and words alone count, if
-- they do at all. Powers beyond 1,000 half-lives would be refused, not be 0.
-- Words count by BM25 (`text_score` in `streams/chunks/scoring.py`). How often a chunk has a word is read from its `ts_rank`, the
-- one number of it that the server gives without unpacking all its words. A name of several words counts once.

-- The words of a question and how many chunks of a namespace have each, with their places in it; the word '' with all its chunks and
-- their octets. A place has more words than one if the namespace has texts in languages ($3) that reduce it to other stems. What the
-- language of the question ($4, null: English) leaves out is no word in any.
-- name: words_asked
WITH languages AS MATERIALIZED (
    SELECT configuration FROM search_configurations($1::text, $3::text[]) AS configuration
    UNION
    SELECT search_configuration($4::text)
), asked AS (
    SELECT w.lexeme AS word, array_agg(DISTINCT p.place) AS places
    FROM languages AS l
    CROSS JOIN LATERAL unnest(to_tsvector(l.configuration, chunk_search_text($2::text))) AS w (lexeme, positions, weights)
    CROSS JOIN LATERAL unnest(w.positions) AS p (place)
    WHERE l.configuration = search_configuration($4::text) OR p.place IN (
        SELECT unnest(o.positions) FROM unnest(to_tsvector(search_configuration($4), chunk_search_text($2))) AS o (lexeme, positions, weights)
    )
    GROUP BY w.lexeme
    UNION ALL
    SELECT '', ARRAY[]::smallint[]
)
SELECT a.word, a.places, coalesce(sum(c.chunks), 0)::bigint AS chunks, coalesce(sum(c.octets), 0)::bigint AS octets,
       (SELECT array_agg(l.configuration::text) FROM languages AS l) AS configurations
FROM asked AS a
LEFT JOIN chunk_words AS c ON c.ns = $1::text AND c.word = a.word COLLATE "C"
GROUP BY a.word, a.places

-- A tsquery of chunks that have each of these phrases ($2) and none of these words and phrases ($3), in any of the languages of a
-- namespace ($4, as above); null: they have no words.
-- name: words_required
SELECT string_agg(CASE WHEN p.is_required THEN p.query ELSE '!( ' || p.query || ' )' END, ' & ') AS query
FROM (
    SELECT a.place, a.is_required, '( ' || string_agg(DISTINCT q.query, ' | ') || ' )' AS query
    FROM (
        SELECT phrase, place, true AS is_required FROM unnest($2::text[]) WITH ORDINALITY AS r (phrase, place)
        UNION ALL
        SELECT phrase, -place, false FROM unnest($3::text[]) WITH ORDINALITY AS e (phrase, place)
    ) AS a
    CROSS JOIN search_configurations($1::text, $4::text[]) AS l (configuration)
    CROSS JOIN LATERAL (SELECT phraseto_tsquery(l.configuration, chunk_search_text(a.phrase))::text AS query) AS q
    WHERE q.query <> ''
    GROUP BY a.place, a.is_required
) AS p

-- Names of a question as a whole ($2), as the languages of a namespace ($4, as above) reduce their parts: a tsquery of chunks that have
-- the parts beside each other, the parts, how many chunks with all parts were read ($3 at most), and how many of these have the whole. A
-- version may have a v before it, there and here.
-- name: names_asked
WITH asked AS (
    SELECT n.name, string_agg(DISTINCT t.text, ' | ') AS text,
           string_agg(DISTINCT regexp_replace(t.text, '<(-|\d+)>', '&', 'g'), ' | ') AS all_parts, array_agg(DISTINCT p.part) AS parts
    FROM unnest($2::text[]) AS n (name)
    CROSS JOIN unnest($4::text[]) AS l (configuration)
    CROSS JOIN LATERAL (
        SELECT regexp_replace(phraseto_tsquery(l.configuration::regconfig, chunk_search_text(n.name))::text, '^''v?(\d+)''', '( ''\1'' | ''v\1'' )')
    ) AS t (text)
    CROSS JOIN LATERAL unnest(tsvector_to_array(to_tsvector(l.configuration::regconfig, chunk_search_text(n.name)))) AS p (part)
    WHERE strpos(t.text, '<') > 0
    GROUP BY n.name
)
SELECT a.name, q.query::text AS query, a.parts, c.read, c.found
FROM asked AS a
CROSS JOIN LATERAL (SELECT a.text::tsquery AS query, a.all_parts::tsquery AS all_parts OFFSET 0) AS q
CROSS JOIN LATERAL (
    SELECT count(*) AS read, count(*) FILTER (WHERE of_parts.words @@ q.query) AS found
    FROM (
        SELECT words FROM chunks
        WHERE ns = $1 AND NOT to_delete AND words @@ q.all_parts
        LIMIT $3
    ) AS of_parts
) AS c

-- Whose vectors a namespace has in this snapshot (null: it is gone), whether they stand beside its chunks, and whether with an index.
-- How many chunks are older than what is found ($5, null: any), counted up to $6: in the order of their age, or all chunks would be
-- looked at to find that few are. $7: whose texts, $8: what they must have, as in a search. How many have no vector, counted up to $6. And how many there are to be compared: of a whole namespace the
-- sum is kept, of less up to $4.
-- name: count_chunks
SELECT n.embedding_model, n.vectors_beside IS TRUE AS vectors_beside,
       n.vectors_beside IS TRUE AND EXISTS (
           SELECT FROM pg_index
           WHERE indisvalid AND indexrelid = to_regclass('chunks_vectors_next_' || md5(n.ns || '|' || n.embedding_model))
       ) AS is_indexed_beside, (
    SELECT count(*) FROM (
        SELECT FROM chunks
        WHERE ns = $1 AND NOT to_delete AND ($2::text IS NULL OR slot = $2) AND ($3::text[] IS NULL OR source_id = ANY ($3))
          AND coalesce(published_at, created_at) < $5::timestamptz
          AND ($7::timestamptz IS NULL OR coalesce(content_since, created_at) <= $7)
        ORDER BY coalesce(published_at, created_at) DESC
        LIMIT $6
    ) AS old
) + (
    SELECT count(*) FROM (
        SELECT FROM former_chunks
        WHERE ns = $1 AND ($2::text IS NULL OR slot = $2) AND ($3::text[] IS NULL OR source_id = ANY ($3))
          AND coalesce(published_at, created_at) < $5::timestamptz AND content_since <= $7 AND valid_until > $7
        LIMIT $6
    ) AS former
) AS cold, (
    SELECT count(*) FROM (
        SELECT FROM chunks
        WHERE ns = $1 AND NOT to_delete AND ($2::text IS NULL OR slot = $2) AND ($3::text[] IS NULL OR source_id = ANY ($3))
          AND (embedding IS NULL OR embedding_stale) AND embedding IS NULL
        LIMIT $6
    ) AS without
) AS without_vector, CASE WHEN $2 IS NULL AND $3 IS NULL AND $8::text IS NULL
    THEN (SELECT coalesce(sum(chunks), 0)::bigint FROM chunk_words WHERE ns = $1 AND word = '' COLLATE "C")
    ELSE (
        SELECT count(*) FROM (
            SELECT FROM chunks
            WHERE ns = $1 AND NOT to_delete AND ($2 IS NULL OR slot = $2) AND ($3 IS NULL OR source_id = ANY ($3))
              AND ($8 IS NULL OR words @@ $8::tsquery)
            LIMIT $4
        ) AS found
    ) END AS compared
FROM (SELECT) AS one LEFT JOIN chunk_namespaces AS n ON n.ns = $1

-- A search is one statement of three parts: `visible_chunks`, one of the two ways to choose `candidates` with what bounds the others
-- (`looked`), and `best_candidates`. Rows are known by their place in the table (`ctid`), which holds as long as the statement runs.
-- name: visible_chunks
WITH visible AS NOT MATERIALIZED (
    SELECT ctid AS place, slot, source_id, chunk_no, coalesce(published_at, created_at) AS base, embedding, words AS all_words,
           CASE WHEN $2::vector IS NULL THEN 0 WHEN embedding IS NULL THEN NULL
                ELSE coalesce(nullif(1 - (embedding <=> $2::vector), 'NaN'), 0) END AS cosine,
           CASE WHEN $3::text IS NOT NULL THEN words END AS words, chunk_text_octets(title, content) AS octets
    FROM chunks
    WHERE ns = $1 AND NOT to_delete AND ($4::text IS NULL OR slot = $4) AND ($5::text[] IS NULL OR source_id = ANY ($5))
      AND ($6::timestamptz IS NULL OR coalesce(published_at, created_at) >= $6)
      AND ($13::timestamptz IS NULL OR coalesce(published_at, created_at) <= $13)
      AND ($21::timestamptz IS NULL OR coalesce(content_since, created_at) <= $21)
      AND ($22::text IS NULL OR words @@ $22::text::tsquery) AND chunk_has(title, content, $23::text[], $24::text[])
)

-- The same where neither words nor filters are asked for: a plan for all parameters tests each of them for each chunk.
-- name: visible_chunks_unfiltered
WITH visible AS NOT MATERIALIZED (
    SELECT ctid AS place, slot, source_id, chunk_no, coalesce(published_at, created_at) AS base, embedding,
           coalesce(nullif(1 - (embedding <=> $2::vector), 'NaN'), 0) AS cosine, NULL::tsvector AS words, 0 AS octets
    FROM chunks
    WHERE ns = $1 AND NOT to_delete AND coalesce(published_at, created_at) >= coalesce($6::timestamptz, '-infinity')
)

-- The same with words.
-- name: visible_chunks_unfiltered_with_words
WITH visible AS NOT MATERIALIZED (
    SELECT ctid AS place, slot, source_id, chunk_no, coalesce(published_at, created_at) AS base, embedding, words AS all_words,
           CASE WHEN $2::vector IS NULL THEN 0 WHEN embedding IS NULL THEN NULL
                ELSE coalesce(nullif(1 - (embedding <=> $2::vector), 'NaN'), 0) END AS cosine,
           words, chunk_text_octets(title, content) AS octets
    FROM chunks
    WHERE ns = $1 AND NOT to_delete AND coalesce(published_at, created_at) >= coalesce($6::timestamptz, '-infinity')
      AND num_nulls($4::text, $5::text[], $13::timestamptz, $21::timestamptz, $22::text, $23::text[], $24::text[]) >= 0
)

-- The same while vectors of the model stand beside (`chunk_next_vectors`), in a namespace without an index: those in `chunks` that another
-- model made count for nothing. All are compared one by one.
-- name: visible_chunks_beside
WITH visible AS NOT MATERIALIZED (
    SELECT c.ctid AS place, c.slot, c.source_id, c.chunk_no, coalesce(c.published_at, c.created_at) AS base, m.embedding,
           c.words AS all_words,
           CASE WHEN $2::vector IS NULL THEN 0 WHEN m.embedding IS NULL THEN NULL
                ELSE coalesce(nullif(1 - (m.embedding <=> $2::vector), 'NaN'), 0) END AS cosine,
           CASE WHEN $3::text IS NOT NULL THEN c.words END AS words, chunk_text_octets(c.title, c.content) AS octets
    FROM chunks AS c
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN c.embedding_model = 'sent' OR c.embedding_model = (SELECT embedding_model FROM chunk_namespaces WHERE ns = $1)
                THEN c.embedding
            ELSE (
                SELECT v.embedding FROM chunk_next_vectors AS v
                WHERE v.ns = c.ns AND v.slot = c.slot AND v.source_id = c.source_id AND v.chunk_no = c.chunk_no
                  AND v.model = (SELECT embedding_model FROM chunk_namespaces WHERE ns = $1)
            ) END AS embedding
        OFFSET 0
    ) AS m
    WHERE c.ns = $1 AND NOT c.to_delete AND ($4::text IS NULL OR c.slot = $4) AND ($5::text[] IS NULL OR c.source_id = ANY ($5))
      AND ($6::timestamptz IS NULL OR coalesce(c.published_at, c.created_at) >= $6)
      AND ($13::timestamptz IS NULL OR coalesce(c.published_at, c.created_at) <= $13)
      AND ($21::timestamptz IS NULL OR coalesce(c.content_since, c.created_at) <= $21)
      AND ($22::text IS NULL OR c.words @@ $22::text::tsquery) AND chunk_has(c.title, c.content, $23::text[], $24::text[])
)

-- The same of a namespace with the index of what stands beside: all vectors of its model do. The name of the model stands in the
-- statement, as in the index.
-- name: visible_chunks_beside_indexed
WITH visible AS NOT MATERIALIZED (
    SELECT c.ctid AS place, c.slot, c.source_id, c.chunk_no, coalesce(c.published_at, c.created_at) AS base, v.embedding,
           c.words AS all_words,
           CASE WHEN $2::vector IS NULL THEN 0 WHEN v.embedding IS NULL THEN NULL
                ELSE coalesce(nullif(1 - (v.embedding <=> $2::vector), 'NaN'), 0) END AS cosine,
           CASE WHEN $3::text IS NOT NULL THEN c.words END AS words, chunk_text_octets(c.title, c.content) AS octets
    FROM chunks AS c
    LEFT JOIN chunk_next_vectors AS v ON v.ns = $1 AND v.slot = c.slot AND v.source_id = c.source_id AND v.chunk_no = c.chunk_no
                                     AND v.model = 'model of the namespace'
    WHERE c.ns = $1 AND NOT c.to_delete AND ($4::text IS NULL OR c.slot = $4) AND ($5::text[] IS NULL OR c.source_id = ANY ($5))
      AND ($6::timestamptz IS NULL OR coalesce(c.published_at, c.created_at) >= $6)
      AND ($13::timestamptz IS NULL OR coalesce(c.published_at, c.created_at) <= $13)
      AND ($21::timestamptz IS NULL OR coalesce(c.content_since, c.created_at) <= $21)
      AND ($22::text IS NULL OR c.words @@ $22::text::tsquery) AND chunk_has(c.title, c.content, $23::text[], $24::text[])
)

-- The same of texts that were replaced or taken out since: those that were found at a time, of each chunk one at most. Of vectors only
-- the model's count; those that were sent before the model was changed are some other's, and gone when all vectors are exchanged.
-- name: visible_former_chunks
WITH visible AS NOT MATERIALIZED (
    SELECT ctid AS place, slot, source_id, chunk_no, coalesce(published_at, created_at) AS base, embedding, words AS all_words,
           CASE WHEN $2::vector IS NULL THEN 0
                WHEN embedding IS NOT NULL
                     AND (embedding_model = (SELECT embedding_model FROM chunk_namespaces WHERE ns = $1)
                          OR embedding_model = 'sent' AND NOT (SELECT vectors_beside FROM chunk_namespaces WHERE ns = $1))
                THEN coalesce(nullif(1 - (embedding <=> $2::vector), 'NaN'), 0) END AS cosine,
           CASE WHEN $3::text IS NOT NULL THEN words END AS words, chunk_text_octets(title, content) AS octets
    FROM former_chunks
    WHERE ns = $1 AND ($4::text IS NULL OR slot = $4) AND ($5::text[] IS NULL OR source_id = ANY ($5))
      AND ($6::timestamptz IS NULL OR coalesce(published_at, created_at) >= $6)
      AND ($13::timestamptz IS NULL OR coalesce(published_at, created_at) <= $13)
      AND content_since <= $21::timestamptz AND valid_until > $21
      AND ($22::text IS NULL OR words @@ $22::text::tsquery) AND chunk_has(title, content, $23::text[], $24::text[])
)

-- All of them.
-- name: all_candidates
, candidates AS (
    SELECT place, slot, source_id, chunk_no, base, cosine, words, octets FROM visible OFFSET 0
), looked AS (
    SELECT NULL::float8 AS near_cosine, NULL::timestamptz AS recent_base
)

-- $26 of the nearest by the index of the namespace. The length of the namespace's vectors stands for 384.
-- name: near_candidates
, nearest AS MATERIALIZED (
    SELECT place, slot, source_id, chunk_no, base, cosine, words, octets
    FROM visible
    WHERE embedding IS NOT NULL AND $2::vector IS NOT NULL
    ORDER BY l2_normalize(embedding)::halfvec(384) <#> (SELECT l2_normalize($2::vector)::halfvec(384))
    LIMIT $26
)

-- And, where no words are asked for, of the most recent those that can be among the best: what is not among the nearest is less near than
-- they are, so it must be young enough to score as much as the last of the best that are. `recent_base`: all that are not looked at are
-- older (null: there are none). Up to $27, which are enough for most searches. What bounds the rest is computed once more, and exactly, by
-- who asks. 2^-9 is what the half precision of the index may be off.
-- name: candidates_without_words
, bounded AS MATERIALIZED (
    SELECT n.near_cosine,
           CASE WHEN $20::int IS NOT NULL OR l.found < $25 OR l.room <= 0 THEN '-infinity'
                WHEN l.room >= $10 THEN $8::timestamptz
                ELSE $8::timestamptz - make_interval(secs => least(1e11, 1 + 86400 * $11::float8 * ln($10 / l.room) / ln(2))) END
               AS young_base
    FROM (SELECT min(cosine) AS near_cosine FROM nearest) AS n
    CROSS JOIN LATERAL (
        SELECT count(*) AS found, min(final) - $9::float8 * greatest(0, n.near_cosine + 0.001953125) AS room
        FROM (SELECT CASE WHEN base < $7::timestamptz THEN 0
                     ELSE $9 * (1 - $12::float8) * cosine
                          + $10::float8 * power(0.5, least(1000, date_part('epoch', greatest($8 - base, '0')) / 86400 / $11)) END AS final
              FROM nearest ORDER BY 1 DESC LIMIT $25) AS best_near
    ) AS l
), recent AS MATERIALIZED (
    SELECT place, slot, source_id, chunk_no, base, cosine, words, octets FROM visible
    WHERE base >= (SELECT young_base FROM bounded) ORDER BY base DESC LIMIT $27
), looked AS (
    SELECT b.near_cosine, CASE WHEN r.count = $27 THEN r.base ELSE nullif(b.young_base, '-infinity') END AS recent_base
    FROM bounded AS b, (SELECT count(*) AS count, min(base) AS base FROM recent) AS r
), candidates AS (
    SELECT * FROM nearest UNION ALL SELECT * FROM recent
)

-- And where words are, $27 of the most recent, and of those with words up to $28 that have all words ($29), and as many that have one of
-- the rare ones ($30).
-- name: candidates_with_words
, recent AS MATERIALIZED (
    SELECT place, slot, source_id, chunk_no, base, cosine, words, octets FROM visible ORDER BY base DESC LIMIT $27
), looked AS (
    SELECT n.near_cosine, CASE WHEN r.count = $27 THEN r.base END AS recent_base
    FROM (SELECT min(cosine) AS near_cosine FROM nearest) AS n, (SELECT count(*) AS count, min(base) AS base FROM recent) AS r
), candidates AS (
    SELECT DISTINCT ON (place) * FROM (
        SELECT * FROM nearest
        UNION ALL
        SELECT * FROM recent
        UNION ALL
        (SELECT place, slot, source_id, chunk_no, base, cosine, words, octets FROM visible
         WHERE all_words @@ (SELECT $29::text::tsquery) LIMIT $28)
        UNION ALL
        (SELECT place, slot, source_id, chunk_no, base, cosine, words, octets FROM visible
         WHERE all_words @@ (SELECT $30::text::tsquery) LIMIT $28)
    ) AS looked_at
)

-- Scored, where no words are asked for.
-- name: scored_without_words
, scored AS (
    SELECT *, 0::float8 AS text_score,
           CASE WHEN base < $7::timestamptz THEN 0
                ELSE $9::float8 * (1 - $12::float8) * coalesce(cosine, 0)
                     + $10::float8 * power(0.5, least(1000, date_part('epoch', greatest($8::timestamptz - base, '0'))
                                                            / 86400 / $11::float8)) END AS final
    FROM candidates
    WHERE num_nulls($1::text, $4::text, $5::text[], $13::timestamptz, $21::timestamptz, $22::text, $23::text[], $24::text[]) >= 0 AND $3::text IS NULL AND $14::text[] IS NULL AND $15::float8[] IS NULL AND $16::float8 IS NULL AND $17::float8 IS NULL
      AND $18::float8[] IS NULL AND $19::int[] IS NULL
)

-- Scored, where they are. Texts become queries once, not for each chunk.
-- name: scored_with_words
, weighed AS (
    SELECT place, slot, source_id, chunk_no, base, cosine, CASE WHEN words @@ (SELECT $3::text::tsquery) THEN (
                    SELECT coalesce(sum(w.weight * w.times / (w.times + $16::float8 + $17::float8 * octets)), 0)
                    FROM (SELECT t.weight, CASE WHEN t.stems > 0
                                 THEN width_bucket(t.stems * ts_rank('{1, 1, 1, 1}', words, t.word)::float8, $18::float8[])::float8
                                 ELSE (words @@ t.word)::int::float8 END AS times
                          FROM unnest((SELECT $14::text[]::tsquery[]), $15::float8[], $19::int[]) AS t (word, weight, stems) OFFSET 0) AS w
                ) ELSE 0 END AS text_score
    FROM candidates OFFSET 0
), scored AS (
    SELECT *, CASE WHEN base < $7::timestamptz THEN 0
              ELSE $9::float8 * CASE WHEN cosine IS NULL THEN text_score ELSE (1 - $12::float8) * cosine + $12 * text_score END
                   + $10::float8 * power(0.5, least(1000, date_part('epoch', greatest($8::timestamptz - base, '0'))
                                                          / 86400 / $11::float8)) END AS final
    FROM weighed OFFSET 0
)

-- A candidate that was found twice is there twice, one after the other.
-- name: best_of_all
, best AS (
    SELECT DISTINCT ON (final, base, slot COLLATE "C", source_id COLLATE "C", chunk_no) * FROM (
        SELECT * FROM scored WHERE $1::text IS NOT NULL AND $20::int IS NULL
        ORDER BY final DESC, base DESC, slot COLLATE "C", source_id COLLATE "C", chunk_no
        LIMIT 2 * $25
    ) AS twice
    ORDER BY final DESC, base DESC, slot COLLATE "C", source_id COLLATE "C", chunk_no
    LIMIT $25
)

-- The same, where only some of each source are asked for.
-- name: best_of_sources
, best AS (
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY slot, source_id ORDER BY final DESC, base DESC, chunk_no) AS place_in_source
        FROM (SELECT DISTINCT ON (place) * FROM scored) AS once
    ) AS by_source
    WHERE $1::text IS NOT NULL AND place_in_source <= $20
    ORDER BY final DESC, base DESC, slot COLLATE "C", source_id COLLATE "C", chunk_no
    LIMIT $25
)

-- name: whole_chunks
SELECT c.slot, c.source_id, c.chunk_no, c.title, c.url, c.content, c.published_at, c.created_at, c.updated_at, c.embedding_stale,
       c.source_partition, c.source_offset, NULL::timestamptz AS valid_until, b.cosine, b.text_score, looked.*
FROM looked CROSS JOIN best AS b JOIN chunks AS c ON c.ctid = b.place

-- name: whole_former_chunks
SELECT c.slot, c.source_id, c.chunk_no, c.title, c.url, c.content, c.published_at, c.created_at, c.updated_at, c.embedding_stale,
       c.source_partition, c.source_offset, c.valid_until, b.cosine, b.text_score, looked.*
FROM looked CROSS JOIN best AS b JOIN former_chunks AS c ON c.ctid = b.place

-- The chunks beside results, in the order of their numbers. $1 namespace, $2 to $4 the results, $5 how many on either side, $6 whose
-- texts: those of this time (null: those of now)
-- name: neighbours_of
SELECT k.place, c.chunk_no, c.title, c.content
FROM unnest($2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY AS k (slot, source_id, chunk_no, place)
JOIN LATERAL (
    (SELECT chunk_no, title, content FROM (
        SELECT chunk_no, title, content FROM chunks
        WHERE ns = $1 AND slot = k.slot AND source_id = k.source_id AND chunk_no < k.chunk_no AND NOT to_delete
          AND ($6::timestamptz IS NULL OR coalesce(content_since, created_at) <= $6)
        UNION ALL
        SELECT chunk_no, title, content FROM former_chunks
        WHERE ns = $1 AND slot = k.slot AND source_id = k.source_id AND chunk_no < k.chunk_no
          AND content_since <= $6 AND valid_until > $6
     ) AS earlier ORDER BY chunk_no DESC LIMIT $5)
    UNION ALL
    (SELECT chunk_no, title, content FROM (
        SELECT chunk_no, title, content FROM chunks
        WHERE ns = $1 AND slot = k.slot AND source_id = k.source_id AND chunk_no > k.chunk_no AND NOT to_delete
          AND ($6::timestamptz IS NULL OR coalesce(content_since, created_at) <= $6)
        UNION ALL
        SELECT chunk_no, title, content FROM former_chunks
        WHERE ns = $1 AND slot = k.slot AND source_id = k.source_id AND chunk_no > k.chunk_no
          AND content_since <= $6 AND valid_until > $6
     ) AS later ORDER BY chunk_no LIMIT $5)
) AS c ON true
ORDER BY k.place, c.chunk_no

-- Namespaces that any user may be told of. $1 how many
-- name: open_namespaces
SELECT * FROM chunk_namespaces WHERE is_open ORDER BY ns LIMIT $1

-- name: closed_namespaces
SELECT ns FROM chunk_namespaces AS n
WHERE NOT is_open AND EXISTS (SELECT FROM chunks AS c WHERE c.ns = n.ns AND NOT c.to_delete) ORDER BY ns

-- Where documents were ingested as a whole, the last ingest of each. $1 their ids, which are those of sources
-- name: places_of_documents
SELECT DISTINCT ON (s.source_id) s.source_id, s.slot, n.*
FROM chunk_sources AS s
JOIN chunk_ingests AS i ON i.ingest_id = s.ingest_id AND i.ns = s.ns AND i.slot = s.slot AND i.source_id = s.source_id
JOIN chunk_namespaces AS n ON n.ns = s.ns
WHERE s.source_id = ANY ($1::text[]) AND i.status = 'complete'
ORDER BY s.source_id, i.decided_at DESC NULLS LAST, s.ns, s.slot
