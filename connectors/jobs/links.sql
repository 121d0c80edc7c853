-- Public links of decks.

-- $4: links that a deck may have. No row: it has them, or the deck is gone.
-- name: add_presentation_link
INSERT INTO presentation_links (link_id, presentation_id, token_hash, created_at)
SELECT gen_random_uuid(), p.presentation_id, $2::text, $3::timestamptz FROM presentations AS p
WHERE p.presentation_id = $1::uuid
  AND (SELECT count(*) FROM presentation_links AS l WHERE l.presentation_id = p.presentation_id) < $4::int
RETURNING link_id::text AS link_id

-- name: presentation_links_read
SELECT link_id::text AS link_id, created_at FROM presentation_links WHERE presentation_id = $1::uuid
ORDER BY created_at, link_id

-- name: delete_presentation_link
DELETE FROM presentation_links WHERE link_id = $1::uuid AND presentation_id = $2::uuid RETURNING link_id

-- name: shared_presentation_read
SELECT p.presentation_id::text AS presentation_id, p.title, p.slides::text AS slides,
       coalesce(s.view_count, 0) AS view_count
FROM presentation_links AS l JOIN presentations AS p ON p.presentation_id = l.presentation_id
     LEFT JOIN presentation_shares AS s ON s.presentation_id = p.presentation_id::text
WHERE l.token_hash = $1
