-- What the export of decks reads.

-- name: deck_to_export
SELECT title, slides FROM presentations WHERE presentation_id = $1::uuid AND organization_id = $2
