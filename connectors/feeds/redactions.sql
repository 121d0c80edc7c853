-- What a retraction changes of versions that are stored, and what is read of them then.

-- Insights that are taken back for the first time. $1 ids, $2 channels
-- name: insights_to_withdraw
SELECT DISTINCT i.insight_id, i.channel_id, i.seq, i.text
FROM unnest($1::text[], $2::text[]) AS r (insight_id, channel_id)
JOIN insights AS i ON i.insight_id = r.insight_id AND i.channel_id = r.channel_id
WHERE i.retracted_at IS NULL

-- Locked in order before they are changed. $1 users, $2 versions
-- name: redact_versions
WITH held AS (
    SELECT user_id, cluster_version FROM user_clusters
    JOIN unnest($1::text[], $2::bigint[]) AS asked (user_id, cluster_version) USING (user_id, cluster_version)
    ORDER BY user_id, cluster_version FOR NO KEY UPDATE OF user_clusters
)
UPDATE user_clusters AS c SET redactions = c.redactions + 1
FROM held LEFT JOIN user_stats AS s ON s.user_id = held.user_id
WHERE c.user_id = held.user_id AND c.cluster_version = held.cluster_version
RETURNING c.user_id, c.cluster_version, c.cluster_version = s.cluster_version AS is_current

-- Documents of the feed that were made of these versions. $1 users, $2 versions
-- name: drop_feeds_of_versions
DELETE FROM feed_documents AS f USING unnest($1::text[], $2::bigint[]) AS a (user_id, cluster_version)
WHERE f.user_id = a.user_id AND f.cluster_version = a.cluster_version

-- Versions of which a document of the feed is stored.
-- name: version_of_feed
SELECT cluster_version FROM feed_documents WHERE user_id = $1

-- Labels told to those whose clusters were made of a channel up to a number. $1 channels, $2 numbers
-- name: labels_of_readers
SELECT DISTINCT h.label FROM cluster_history AS h
WHERE h.user_id IN (
    SELECT m.user_id FROM unnest($1::text[], $2::bigint[]) AS a (channel_id, seq)
    JOIN user_cluster_hwm AS m ON m.channel_id = a.channel_id AND m.last_seq >= a.seq)

-- name: labels_of_user
SELECT DISTINCT label FROM cluster_history WHERE user_id = $1

-- Phrases that an insight still says, in English or in its language. $2 languages besides English
-- name: phrases_still_said
SELECT phrase FROM unnest($1::text[]) AS phrase
WHERE EXISTS (
    SELECT FROM insights
    WHERE (to_tsvector('english', left(text, 2000)) @@ phraseto_tsquery('english', phrase)
           OR to_tsvector(search_configuration(language), left(text, 2000)) @@ (
               SELECT string_agg(stems, ' | ')::tsquery
               FROM (SELECT DISTINCT phraseto_tsquery(search_configuration(l.language), phrase)::text AS stems
                     FROM unnest($2::text[]) AS l (language)) AS of_languages
               WHERE stems <> '') AND language IS NOT NULL)
      AND retracted_at IS NULL)

-- Other labels in what is told of clusters. $1 those told, $2 in their place, $3 of this user only (null: of all)
-- name: replace_labels
WITH told AS (
    UPDATE cluster_history AS h SET label = a.label
    FROM unnest($1::text[], $2::text[]) AS a (told, label)
    WHERE h.label = a.told AND ($3::text IS NULL OR h.user_id = $3::text)
    RETURNING h.user_id)
SELECT DISTINCT user_id FROM told

-- Of a version's insights those that were retracted. $1 ids
-- name: retracted_insights
SELECT insight_id FROM insights WHERE insight_id = ANY ($1::text[]) AND retracted_at IS NOT NULL

-- Texts of insights that are left, of each group the newest. $1 groups, $2 ids, $3 how many of a group
-- name: texts_of_remaining
SELECT insight_id, text FROM (
    SELECT i.insight_id, left(i.text, 2000) AS text,
           row_number() OVER (PARTITION BY asked.place ORDER BY i.ts DESC, i.insight_id) AS number
    FROM unnest($1::int[], $2::text[]) AS asked (place, insight_id) JOIN insights AS i USING (insight_id)
    WHERE i.retracted_at IS NULL
) AS ranked WHERE number <= $3 ORDER BY number, insight_id
