-- An entity tag is bound to what it names: to the bytes where there are any, otherwise to the change that made the version.
-- Two installations, or one that was restored from a backup, count the same versions of other contents.

-- $1 key, $2 version, $3 position of the event behind it, $4 when it changed, $5 SHA-256 of the bytes in hexadecimal, or NULL.
-- 48 bits: the versions of one key that a client holds are few, and an equal tag also takes an equal version.
CREATE FUNCTION resource_tag(text, bigint, text, timestamptz, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT split_part($1, ':', 1) || '-' || $2 || '-' || left(coalesce(
        $5, encode(sha256(convert_to($1 || ' ' || $2 || ' ' || $3 || ' ' || extract(epoch FROM $4), 'UTF8')), 'hex')), 12)
$$;

UPDATE resource_versions AS held
SET etag = resource_tag(held.key, held.version, held.position, held.changed_at,
                        (SELECT encode(sha256(d.payload), 'hex') FROM documents AS d WHERE d.key = held.key));
