-- The languages of texts that were stored before a text had one. Each statement reads or writes a batch in the order of keys.

-- $1 the last id that was read, $2 how many
-- name: insights_to_label
SELECT insight_id, left(text, 2000) AS text FROM insights
WHERE insight_id > $1 AND language IS NULL AND retracted_at IS NULL
ORDER BY insight_id LIMIT $2

-- name: label_insights
UPDATE insights AS i SET language = w.language
FROM unnest($1::text[], $2::text[]) AS w (insight_id, language)
WHERE i.insight_id = w.insight_id AND i.language IS NULL

-- $1 to $4 the last key that was read, $5 how many
-- name: chunks_to_label
SELECT ns, slot, source_id, chunk_no, content_hash, coalesce(title, '') || ' ' || left(content, 2000) AS text FROM chunks
WHERE (ns, slot, source_id, chunk_no) > ($1::text, $2::text, $3::text, $4::bigint) AND language IS NULL
ORDER BY ns, slot, source_id, chunk_no LIMIT $5

-- A text that changed meanwhile has the language of its writer.
-- name: label_chunks
UPDATE chunks AS c SET language = w.language
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])
    AS w (ns, slot, source_id, chunk_no, content_hash, language)
WHERE (c.ns, c.slot, c.source_id, c.chunk_no, c.content_hash) = (w.ns, w.slot, w.source_id, w.chunk_no, w.content_hash)
  AND c.language IS NULL

-- In the order of their places: a former text is never changed, so it stays where it is until it has a language. $1 the last place
-- name: former_chunks_to_label
SELECT ctid::text AS place, content_hash, coalesce(title, '') || ' ' || left(content, 2000) AS text FROM former_chunks
WHERE ctid > $1::text::tid AND language IS NULL
ORDER BY ctid LIMIT $2

-- name: label_former_chunks
UPDATE former_chunks AS c SET language = w.language
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (place, content_hash, language)
WHERE c.ctid = w.place::tid AND c.content_hash = w.content_hash AND c.language IS NULL
