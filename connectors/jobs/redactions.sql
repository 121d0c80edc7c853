-- What is withdrawn of decks, and of answers that are kept to be given again.

-- A deck may quote any chunk of its documents. $1 document, $2 ids of documents
-- name: tag_documents
INSERT INTO surrogate_keys (document, version, space, numbers)
SELECT DISTINCT $1::text, 0, 'source:' || ns || '|' || slot || '|' || source_id, '{[0,)}'::int8multirange
FROM chunk_sources WHERE source_id = ANY ($2::text[])
ON CONFLICT (document, version, space) DO UPDATE SET numbers = excluded.numbers

-- Texts of chunks of these documents that are to be deleted.
-- name: deleted_texts
SELECT left(coalesce(c.title || E'\n', '') || c.content, 8192) AS text
FROM chunk_sources AS s JOIN chunks AS c ON c.ns = s.ns AND c.slot = s.slot AND c.source_id = s.source_id
WHERE s.source_id = ANY ($1::text[]) AND c.to_delete

-- name: decks_to_redact
SELECT presentation_id::text, title, slides::text AS slides FROM presentations
WHERE presentation_id = ANY ($1::uuid[]) ORDER BY presentation_id FOR UPDATE

-- name: redact_decks
UPDATE presentations AS p SET title = m.title, slides = m.slides::jsonb
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS m (id, title, slides) WHERE p.presentation_id = m.id

-- name: withdraw_semantic_vectors
UPDATE semantic_vectors SET is_withdrawn = true WHERE hash = ANY ($1::text[])

-- name: withdrawn_semantic_vectors
SELECT hash FROM semantic_vectors WHERE is_withdrawn LIMIT 100

-- name: forget_semantic_vectors
DELETE FROM semantic_vectors WHERE hash = ANY ($1::text[]) AND is_withdrawn
