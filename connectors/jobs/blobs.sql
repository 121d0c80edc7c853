-- Whoever adds to what an organization stores holds this lock, so that two uploads at once do not both find room for one.
-- name: hold_storage
SELECT pg_advisory_xact_lock(hashtextextended('blobs:' || $1::text, 0))

-- name: storage_of
SELECT coalesce(sum(b.size_bytes), 0)::bigint AS stored_bytes, coalesce(bool_or(b.sha256 = $2::text), false) AS is_owned
FROM blob_owners o JOIN blobs b USING (sha256) WHERE o.organization_id = $1::text

-- Waits for another transaction that stores the same bytes: when it has, there is nothing left to do; when it gave up, ours goes on.
-- name: store_blob
INSERT INTO blobs (sha256, size_bytes, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING sha256

-- name: store_blob_part
INSERT INTO blob_parts (sha256, part, content) VALUES ($1, $2, $3)

-- name: store_blob_owner
INSERT INTO blob_owners (sha256, organization_id, media_type, created_at, file_name) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING RETURNING sha256

-- name: blobs_of
SELECT o.sha256, o.media_type, b.size_bytes, o.file_name
FROM blob_owners o JOIN blobs b USING (sha256) WHERE o.organization_id = $1::text AND o.sha256 = ANY ($2::text[])

-- As the first who put it described it.
-- name: blob_of_anybody
SELECT o.sha256, o.media_type, b.size_bytes, o.file_name
FROM blob_owners o JOIN blobs b USING (sha256) WHERE o.sha256 = $1::text ORDER BY o.created_at, o.organization_id LIMIT 1

-- name: read_blob_part
SELECT content FROM blob_parts WHERE sha256 = $1::text AND part = $2::int
