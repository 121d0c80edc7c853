-- Backups: the tables and sequences of our schema, and what is loaded from the log after a restore.

-- The moment is that of the first statement of the transaction.
-- name: backup_moment
SELECT 1

-- Tables in an order in which each comes after those that it refers to, with the columns that are stored: not those that are
-- generated, nor those that a trigger computes whenever a row is written (their comment says "computed").
-- name: backup_tables
WITH RECURSIVE own AS (
    SELECT c.oid, c.relname FROM pg_class AS c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype = 'e')
), refers AS (
    SELECT k.conrelid AS oid, k.confrelid AS to_oid FROM pg_constraint AS k WHERE k.contype = 'f' AND k.conrelid <> k.confrelid
), levels AS (
    SELECT oid, 0 AS level FROM own
    UNION ALL
    SELECT r.oid, l.level + 1 FROM levels AS l JOIN refers AS r ON r.to_oid = l.oid
)
SELECT o.relname AS name, max(l.level) AS level,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute AS a
        WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
          AND col_description(o.oid, a.attnum) IS DISTINCT FROM 'computed') AS columns
FROM own AS o JOIN levels AS l USING (oid) GROUP BY o.oid, o.relname ORDER BY max(l.level), o.relname

-- name: backup_sequences
SELECT sequencename AS name, coalesce(last_value, 0) AS last_value FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1

-- name: backup_positions
SELECT "group", topic, partition, topic_id, next FROM positions ORDER BY 1, 2, 3

-- name: backup_migrations
SELECT name, sha256 FROM schema_migrations ORDER BY name

-- name: backup_blobs
SELECT count(*) AS count, coalesce(sum(size_bytes), 0)::bigint AS bytes FROM blobs

-- name: has_migrations
SELECT to_regclass('schema_migrations') IS NOT NULL

-- name: has_positions
SELECT to_regclass('positions') IS NOT NULL

-- Tables that `highwater init` made, and nothing was read into, are no loss.
-- name: is_read_into
SELECT EXISTS (SELECT FROM positions)

-- Who else is connected: a role that goes on while its rows are replaced would store what it believes.
-- name: other_sessions
SELECT application_name, count(*) AS count FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL ($1::int[]) AND backend_type = 'client backend'
GROUP BY 1 ORDER BY 1

-- Everything of ours; extensions stay, since not every role may make them.
-- name: drop_own
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT format('DROP TABLE %I CASCADE', relname) AS statement FROM pg_class AS c
               WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
                 AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype = 'e')
    LOOP
        EXECUTE one.statement;
    END LOOP;
    FOR one IN SELECT format('DROP SEQUENCE %I CASCADE', relname) AS statement FROM pg_class AS c
               WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
                 AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = c.oid AND d.deptype = 'e')
    LOOP
        EXECUTE one.statement;
    END LOOP;
    FOR one IN SELECT 'DROP FUNCTION ' || p.oid::regprocedure || ' CASCADE' AS statement FROM pg_proc AS p
               WHERE pronamespace = 'public'::regnamespace
                 AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.objid = p.oid AND d.deptype = 'e')
    LOOP
        EXECUTE one.statement;
    END LOOP;
END
$$

-- name: begin_restore
INSERT INTO restore_progress (began_at, source) VALUES ($1, $2)

-- The same while a database that had gone back catches up: `$3` is where the results of the log began that it lacked, as JSON.
-- name: begin_catch_up
INSERT INTO restore_progress (began_at, source, starts) VALUES ($1, $2, $3)

-- name: catch_up_in_progress
SELECT source, starts FROM restore_progress

-- name: end_restore
DELETE FROM restore_progress

-- name: raise_sequence
SELECT setval($1::text::regclass, greatest($2::bigint, 1), $2::bigint > 0)

-- Positions of sinks whose events the restore has stored itself.
-- name: set_restored_positions
INSERT INTO positions ("group", topic, partition, topic_id, next)
SELECT $1, topic, partition, topic_id, next
FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[]) AS moved (topic, partition, topic_id, next)
ON CONFLICT ("group", topic, partition) DO UPDATE SET topic_id = excluded.topic_id, next = excluded.next

-- name: stopped_places
SELECT "group", topic, partition FROM stopped_partitions

-- What a replay has told, in the order in which it was told; those from before it are left alone.
-- name: outbox_after
SELECT id, topic, key, headers FROM outbox WHERE id > $1 ORDER BY id LIMIT $2

-- name: outbox_top
SELECT coalesce(max(id), 0) FROM outbox

-- name: drop_outbox
DELETE FROM outbox WHERE id = ANY ($1::bigint[])

-- Commands for jobs that have ended by what the log says.
-- name: drop_commands_of_ended_jobs
DELETE FROM outbox AS o USING jobs AS j
WHERE o.topic IN ('jobs.generation-requested', 'jobs.ingestion-requested', 'jobs.export-requested')
  AND o.key = convert_to(j.job_id::text, 'UTF8') AND j.status NOT IN ('pending', 'running')

-- Users whose clusters the log knows in versions that are not here, and those who wait for a demand to be answered. $1 users, $2 versions
-- name: users_to_rebuild
SELECT u.user_id FROM user_stats AS u LEFT JOIN unnest($1::text[], $2::bigint[]) AS t (user_id, cluster_version) USING (user_id)
WHERE u.cluster_version < t.cluster_version
   OR EXISTS (SELECT FROM rebuild_demands AS d WHERE d.user_id = u.user_id AND d.outcome IS NULL)
ORDER BY u.user_id

-- $1 users, $2 versions, $3 positions of requests, or null, $4 when clustered, $5 when checked
-- name: load_rebuilds
UPDATE user_stats AS u SET
    cluster_version = greatest(u.cluster_version, t.cluster_version), last_request = coalesce(t.last_request, u.last_request),
    last_clustered_at = greatest(u.last_clustered_at, t.clustered_at), last_checked_at = greatest(u.last_checked_at, t.checked_at),
    in_flight = NULL, in_flight_until = NULL
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::timestamptz[], $5::timestamptz[])
     AS t (user_id, cluster_version, last_request, clustered_at, checked_at)
WHERE u.user_id = t.user_id

-- $1 users, $2 channels, $3 marks, $4 retractions
-- name: load_marks
INSERT INTO user_cluster_hwm AS h (user_id, channel_id, last_seq, is_shown, retractions)
SELECT t.user_id, t.channel_id, t.last_seq, true, t.retractions
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS t (user_id, channel_id, last_seq, retractions)
JOIN user_stats AS u USING (user_id)
ON CONFLICT (user_id, channel_id) DO UPDATE SET
    last_seq = greatest(h.last_seq, excluded.last_seq), retractions = greatest(h.retractions, excluded.retractions)

-- name: load_user_revisions
UPDATE user_stats AS u SET revision = t.revision FROM unnest($1::text[], $2::bigint[]) AS t (user_id, revision)
WHERE u.user_id = t.user_id AND NOT EXISTS (
    SELECT FROM outbox AS o WHERE o.topic = 'feeds.user-changed' AND o.key = convert_to(u.user_id, 'UTF8'))

-- Before the matches are replayed: what is told of them again is newer than what the log has.
-- name: load_season_revisions
INSERT INTO league_seasons AS s (season, revision) SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (season) DO UPDATE SET revision = greatest(s.revision, excluded.revision)

-- name: runs_to_load
SELECT id::text AS id, status, archive_status, revision FROM pipeline_runs WHERE id = ANY ($1::uuid[]) FOR UPDATE

-- $1 ids, $2 statuses, $3 statuses of the archive, or null, $4 revisions, $5 errors, $6 when, $7 whether it was cancelled
-- name: load_runs
UPDATE pipeline_runs AS r SET
    status = t.status, archive_status = t.archive_status, released = true, revision = t.revision, error = t.error,
    epoch = r.epoch + 1, worker = NULL, lease_until_ms = NULL, due_ms = NULL, command = NULL, attempt = 0, updated_at = t.at,
    completed_at = CASE WHEN t.status = 'COMPLETED' THEN coalesce(r.completed_at, t.at) END, is_cancelled = t.is_cancelled
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::timestamptz[], $7::boolean[])
     AS t (id, status, archive_status, revision, error, at, is_cancelled)
WHERE r.id = t.id

-- name: load_ordinals
INSERT INTO query_users AS q (user_id, last_ordinal)
SELECT t.user_id, t.last_ordinal FROM unnest($1::uuid[], $2::bigint[]) AS t (user_id, last_ordinal)
WHERE EXISTS (SELECT FROM pipeline_runs AS r WHERE r.user_id = t.user_id)
ON CONFLICT (user_id) DO UPDATE SET last_ordinal = greatest(q.last_ordinal, excluded.last_ordinal)

-- name: jobs_to_load
SELECT job_id::text AS job_id, kind, status, seq, epoch, error FROM jobs WHERE job_id = ANY ($1::uuid[]) FOR UPDATE

-- $1 ids, $2 statuses, $3 last progress, $4 percent, $5 errors, $6 when it ended, or null, $7 checkpoints, or null, $8 steps done,
-- $9 steps in all, $10 epochs
-- name: load_jobs
UPDATE jobs AS j SET
    status = t.status, seq = greatest(j.seq, t.seq), progress_pct = greatest(j.progress_pct, t.progress_pct), error = t.error,
    completed_at = t.completed_at, checkpoint = t.checkpoint::jsonb, steps_done = t.steps_done, steps_total = t.steps_total,
    epoch = greatest(j.epoch, t.epoch) + 1, worker = NULL, lease_until_ms = NULL, due_ms = NULL, command = NULL,
    approval_until_ms = NULL
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::int[], $5::text[], $6::timestamptz[], $7::text[], $8::int[], $9::int[],
            $10::bigint[])
     AS t (job_id, status, seq, progress_pct, error, completed_at, checkpoint, steps_done, steps_total, epoch)
WHERE j.job_id = t.job_id

-- $1 organizations, $2 periods, $3 numbers, $4 jobs, $5 presentations, $6 slides, $7 tokens, $8 cents, $9 tokens of the built-in
-- model, $10 when
-- name: load_usage_entries
INSERT INTO usage_entries (organization_id, period, seq, job_id, presentations, slides, tokens, cost_cents, built_in_tokens,
                           counted_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                     $9::bigint[], $10::timestamptz[])
ON CONFLICT (organization_id, period, seq) DO NOTHING

-- name: load_usage_sums
INSERT INTO usage_sequences AS s (organization_id, period, last_seq, presentations, slides, tokens, cost_cents, counted_at,
                                  built_in_tokens)
SELECT e.organization_id, e.period, max(e.seq), sum(e.presentations), sum(e.slides), sum(e.tokens), sum(e.cost_cents),
       max(e.counted_at), sum(e.built_in_tokens)
FROM usage_entries AS e
WHERE (e.organization_id, e.period) IN (SELECT * FROM unnest($1::text[], $2::text[]))
GROUP BY 1, 2
ON CONFLICT (organization_id, period) DO UPDATE SET
    last_seq = excluded.last_seq, presentations = excluded.presentations, slides = excluded.slides, tokens = excluded.tokens,
    cost_cents = excluded.cost_cents, counted_at = excluded.counted_at, built_in_tokens = excluded.built_in_tokens

-- name: load_usage_of_jobs
UPDATE jobs AS j SET tokens = e.tokens, cost_usd = e.cost_cents / 100.0, cost_cents = e.cost_cents
FROM (SELECT job_id, sum(tokens)::bigint AS tokens, sum(cost_cents)::bigint AS cost_cents FROM usage_entries
      WHERE job_id = ANY ($1::uuid[]) GROUP BY job_id) AS e
WHERE e.job_id = j.job_id AND j.tokens < e.tokens

-- name: load_alerts_sent
INSERT INTO alerts_sent (position, channel, sent_at) SELECT p, c, $3 FROM unnest($1::text[]) AS p, unnest($2::text[]) AS c
ON CONFLICT DO NOTHING

-- name: load_ingest_revisions
UPDATE chunk_ingests AS i SET revision = t.revision
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS t (ingest_id, ns, slot, source_id, revision)
WHERE (i.ingest_id, i.ns, i.slot, i.source_id) = (t.ingest_id, t.ns, t.slot, t.source_id)

-- name: load_lease_epochs
INSERT INTO leases AS l (kind, name, owner, epoch, expires_at)
SELECT $1, t.name, 'restore', t.epoch, '-infinity' FROM unnest($2::text[], $3::bigint[]) AS t (name, epoch)
ON CONFLICT (kind, name) DO UPDATE SET epoch = greatest(l.epoch, excluded.epoch)

-- name: identity_of_outbox
SELECT pg_get_serial_sequence('outbox', 'id') AS outbox, pg_get_serial_sequence('lsm_storage', 'id') AS memories

-- name: raise_sequence_above
SELECT setval($1::text::regclass, greatest(nextval($1::text::regclass), $2::bigint + 1))

-- Resources whose version the log does not have, or has another of: each gets one that nobody has seen. $1 keys, $2 versions and
-- $3 tags as announced last (0 and none where none was), $4 now
-- name: renew_versions
UPDATE resource_versions AS held SET
    version = greatest(held.version, floor.lost) + 1,
    etag = resource_tag(held.key, greatest(held.version, floor.lost) + 1, held.position, $4::timestamptz, NULL),
    changed_at = $4::timestamptz
FROM version_floor AS floor, unnest($1::text[], $2::bigint[], $3::text[]) AS t (key, version, etag)
WHERE held.key = t.key AND (held.version, held.etag) <> (t.version, t.etag)
RETURNING held.key, held.version, held.etag, held.position

-- A key that has no row begins above every version of it that the log knows.
-- name: raise_floor_above
UPDATE version_floor SET value = greatest(value, (
    SELECT coalesce(max(t.version), 0) FROM unnest($1::text[], $2::bigint[]) AS t (key, version)
    WHERE NOT EXISTS (SELECT FROM resource_versions AS held WHERE held.key = t.key)))

-- name: known_resources
SELECT key FROM resource_versions

-- Above everything that is known, by $1: versions that were read, and published nowhere, are not assigned again either.
-- name: raise_lost_floor
UPDATE version_floor SET lost = greatest(lost, $2::bigint, (SELECT coalesce(max(version), 0) FROM resource_versions)) + $1::bigint

-- One process compares the server with the log; the others wait for its outcome.
-- name: hold_comparison
SELECT pg_advisory_xact_lock($1::int, 0)

-- A transaction that began on a standby stays read-only after the promotion.
-- name: is_read_only
SELECT current_setting('transaction_read_only')::boolean

-- name: mark_server_compared
UPDATE compared_servers SET started_at = pg_postmaster_start_time()

-- name: mark_server_caught_up
UPDATE compared_servers SET started_at = pg_postmaster_start_time(), caught_up_ms = greatest(caught_up_ms + 1, $1::bigint)

-- name: highest_positions
SELECT topic, partition, topic_id, max(next) AS next FROM positions GROUP BY 1, 2, 3

-- name: stored_numbers
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox', 'id')::regclass), 0) AS outbox_id, greatest(value, lost) AS floor
FROM version_floor

-- name: stored_epochs
SELECT name, epoch FROM leases WHERE kind = $1

-- name: stored_versions
SELECT key, version FROM resource_versions WHERE key = ANY ($1::text[])
