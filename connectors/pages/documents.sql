-- Documents that are served (leagues), and the leases under which processes serve copies of them from their own memory.

-- One maker of a document at a time, over all processes; whoever waited sees what the one before stored.
-- name: lock_document
SELECT pg_advisory_xact_lock($1::int, hashtext($2))

-- Makers of single pages share it; whoever makes all that changed has it alone, and then no page is in the making elsewhere.
-- name: share_pages
SELECT pg_advisory_xact_lock_shared($1::int, 0)

-- name: hold_pages
SELECT pg_advisory_xact_lock($1::int, 0)

-- name: note_page_changes
INSERT INTO page_changes (key) SELECT unnest($1::text[])

-- name: has_page_changes
SELECT EXISTS (SELECT FROM page_changes)

-- Of those that changed, the ones that somebody has asked for.
-- name: changed_pages
SELECT DISTINCT key FROM page_changes JOIN documents USING (key)

-- name: this_moment
SELECT pg_current_snapshot()::text

-- Those that the facts of this moment ($1) have; what was committed after it stays.
-- name: forget_page_changes
DELETE FROM page_changes WHERE pg_visible_in_snapshot(changed_in, $1::text::pg_snapshot)

-- name: document
SELECT d.version, v.etag, v.position, v.changed_at, d.built_at, d.payload
FROM documents AS d JOIN resource_versions AS v USING (key) WHERE d.key = $1

-- name: document_head
SELECT d.version, v.etag, v.position, v.changed_at, d.built_at
FROM documents AS d JOIN resource_versions AS v USING (key) WHERE d.key = $1

-- name: documents_of
SELECT d.key, d.version, v.etag, v.position, v.changed_at, d.built_at, d.payload
FROM documents AS d JOIN resource_versions AS v USING (key) WHERE d.key = ANY ($1::text[])

-- name: document_keys
SELECT key FROM documents WHERE key = ANY ($1::text[])

-- name: document_keys_from
SELECT key FROM documents WHERE starts_with(key, $1)

-- $5: the form of its bytes, which holds for this version only: an earlier release builds the next one without a form.
-- name: put_document
INSERT INTO documents (key, version, coming, payload, built_at, form, form_at) VALUES ($1, $2, $2, $3, $4, $5, $2)
ON CONFLICT (key) DO UPDATE SET
    version = excluded.version, coming = excluded.coming, payload = excluded.payload, built_at = excluded.built_at,
    form = excluded.form, form_at = excluded.form_at

-- Made again with the same bytes: as good as new, and no other version is coming.
-- name: touch_document
UPDATE documents SET built_at = GREATEST(built_at, $2), coming = version, form = $3, form_at = version WHERE key = $1

-- Committed before the new versions are: from then on no lease is renewed with an older copy.
-- name: announce_documents
UPDATE documents AS d SET coming = GREATEST(d.coming, announced.version)
FROM unnest($1::text[], $2::bigint[]) AS announced (key, version) WHERE d.key = announced.key

-- Documents of other forms than a release builds. $1 the beginnings of their keys, $2 the form of each
-- name: documents_of_former_forms
SELECT key FROM documents JOIN unnest($1::text[], $2::int[]) AS built (prefix, form) ON starts_with(key, built.prefix)
WHERE documents.form <> built.form OR form_at <> version ORDER BY key

-- name: drop_documents
DELETE FROM documents WHERE key = ANY ($1::text[])

-- The barrier that was raised last; read before the versions are, so that whoever has seen it has seen what was committed before.
-- name: copy_barrier
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM copy_barrier

-- name: copy_versions
SELECT key, GREATEST(version, coming) AS version FROM documents WHERE key = ANY ($1::text[])

-- $1 holder, $2 barrier it has seen, $3 seconds. Leases that ended an hour ago belong to processes that are gone.
-- name: renew_copy_lease
WITH gone AS (DELETE FROM copy_leases WHERE expires_at < clock_timestamp() - interval '1 hour')
INSERT INTO copy_leases (holder, expires_at, barrier)
VALUES ($1, clock_timestamp() + make_interval(secs => $3), $2)
ON CONFLICT (holder) DO UPDATE SET expires_at = excluded.expires_at, barrier = excluded.barrier

-- name: end_copy_lease
DELETE FROM copy_leases WHERE holder = $1

-- name: raise_copy_barrier
SELECT nextval('copy_barrier'), pg_notify($1, '')

-- name: copies_not_told
SELECT count(*) FROM copy_leases WHERE expires_at > clock_timestamp() AND barrier < $1
