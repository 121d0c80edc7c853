-- Documents by the objects that they hold.

-- Whoever stores a document shares the lock, whoever withdraws an object holds it alone.
-- name: share_withdrawals
SELECT pg_advisory_xact_lock_shared($1, $2)

-- name: hold_withdrawals
SELECT pg_advisory_xact_lock($1, $2)

-- A document and version for each object; what is there already is added to.
-- $1 documents, $2 versions, $3 spaces, $4 numbers
-- name: tag_objects
INSERT INTO surrogate_keys AS held (document, version, space, numbers)
SELECT document, version, space, range_agg(int8range(number, number, '[]'))
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) AS told (document, version, space, number)
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
ON CONFLICT (document, version, space) DO UPDATE SET numbers = held.numbers + excluded.numbers

-- The same of insights, by their ids. $1 document, $2 version, $3 ids
-- name: tag_insights
INSERT INTO surrogate_keys AS held (document, version, space, numbers)
SELECT $1::text, $2::bigint, 'channel:' || channel_id, range_agg(int8range(seq, seq, '[]'))
FROM insights WHERE insight_id = ANY ($3::text[]) GROUP BY channel_id
ON CONFLICT (document, version, space) DO UPDATE SET numbers = held.numbers + excluded.numbers

-- name: retracted_of
SELECT insight_id, channel_id, seq, left(text, 8192) AS text FROM insights
WHERE insight_id = ANY ($1::text[]) AND retracted_at IS NOT NULL

-- $1 spaces, $2 numbers, $3 the kind of document, which its key begins with
-- name: documents_with
SELECT s.document, s.version, s.space, a.number
FROM unnest($1::text[], $2::bigint[]) AS a (space, number)
JOIN surrogate_keys AS s ON s.space = a.space AND s.numbers @> a.number
WHERE starts_with(s.document, $3::text)
ORDER BY s.document, s.version, s.space, a.number

-- name: untag_documents
DELETE FROM surrogate_keys WHERE document = ANY ($1::text[])

-- name: untag_versions
DELETE FROM surrogate_keys WHERE document = $1 AND version <= $2 AND NOT version = ANY ($3::bigint[])
