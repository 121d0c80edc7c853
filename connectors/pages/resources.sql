-- The version of a served resource: one more than before; a key that is new, or was erased, starts above the floor, and every one
-- above those that a lost database may have assigned.
-- $1 key (its part before the colon names the kind), $2 position of the event behind it, $3 now, $4 SHA-256 of its bytes or NULL
-- name: bump_version
INSERT INTO resource_versions AS held (key, version, etag, position, changed_at)
SELECT $1::text, new.version, resource_tag($1::text, new.version, $2::text, $3::timestamptz, $4::text), $2::text, $3::timestamptz
FROM version_floor AS floor LEFT JOIN resource_versions AS old ON old.key = $1::text,
     LATERAL (SELECT greatest(coalesce(old.version, floor.value), floor.lost) + 1 AS version) AS new
ON CONFLICT (key) DO UPDATE SET
    version = greatest(held.version + 1, excluded.version),
    etag = resource_tag(held.key, greatest(held.version + 1, excluded.version), excluded.position, excluded.changed_at, $4::text),
    position = excluded.position,
    changed_at = excluded.changed_at
RETURNING version, etag

-- The version of a resource whose tag is that of these bytes: what is there again as it was. $1 key, $2 SHA-256 of the bytes
-- name: version_of_bytes
SELECT version, etag, position, changed_at FROM resource_versions
WHERE key = $1 AND etag = resource_tag(key, version, position, changed_at, $2::text)

-- name: raise_version_floor
UPDATE version_floor SET value = GREATEST(value, (
    SELECT COALESCE(max(version) + 1, 0) FROM resource_versions WHERE key = ANY ($1::text[])))

-- name: erase_resources
DELETE FROM resource_versions WHERE key = ANY ($1::text[])

-- As `bump_version`, of resources that have a version. $1 keys, $2 positions of the events behind them, $3 now
-- name: bump_known_versions
WITH asked AS (
    SELECT held.key, a.position
    FROM unnest($1::text[], $2::text[]) AS a (key, position) JOIN resource_versions AS held ON held.key = a.key
    ORDER BY held.key FOR NO KEY UPDATE OF held
)
UPDATE resource_versions AS held SET
    version = greatest(held.version, floor.lost) + 1,
    etag = resource_tag(held.key, greatest(held.version, floor.lost) + 1, asked.position, $3::timestamptz, NULL),
    position = asked.position,
    changed_at = $3::timestamptz
FROM version_floor AS floor, asked WHERE held.key = asked.key
RETURNING held.key, held.version, held.etag, held.position
