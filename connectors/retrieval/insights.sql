-- Searches of insights.

-- The bases whose vectors insights have: the active one and the one that is rolled out, if any.
-- name: bases_of_insights
SELECT b.basis_id, b.kind <> 'remote' AS is_own, b.basis_id = a.basis_id AS is_active
FROM active_basis AS a JOIN bases AS b ON b.basis_id IN (a.basis_id, a.next_id)

-- name: basis_content
SELECT content FROM bases WHERE basis_id = $1

-- Channels that one of these words names (in lower case), whole or by a part: `akhq` names `tchiotludo/akhq`.
-- name: channels_named
SELECT channel_id, current_seq, lower(channel_id) = ANY ($1::text[]) OR split_part(lower(channel_id), '/', 2) = ANY ($1::text[]) AS is_whole
FROM channels
WHERE (regexp_split_to_array(lower(channel_id), '[^[:alnum:]]+') && $1::text[] OR lower(channel_id) = ANY ($1::text[])
       OR split_part(lower(channel_id), '/', 2) = ANY ($1::text[]))
  AND ($2::text[] IS NULL OR channel_id = ANY ($2::text[]))
ORDER BY is_whole DESC, channel_id LIMIT $3

-- name: count_insights
SELECT coalesce(sum(current_seq), 0)::bigint FROM channels WHERE $1::text[] IS NULL OR channel_id = ANY ($1::text[])

-- name: count_channels
SELECT count(*) FROM channels

-- For each word how many insights have it, and the newest $3 of them, by its stem in English and, of insights in other languages,
-- in those of them that are asked for ($4). Without channels: of all. In languages with compound words ($5) words that begin with
-- a stem of four letters or more have it too.
-- name: insights_with_words
SELECT w.place, max(i.holders) AS holders, array_agg(i.insight_id) AS insight_ids
FROM (
    SELECT w.place, plainto_tsquery('english', w.words) AS in_english, (
        SELECT string_agg(stems, ' | ')::tsquery
        FROM (SELECT DISTINCT CASE WHEN l.language = ANY ($5::text[]) THEN regexp_replace(q.stems, '(\w\w\w\w'')', '\1:*', 'g') ELSE q.stems END
                  AS stems
              FROM unnest($4::text[]) AS l (language),
                   LATERAL (SELECT plainto_tsquery(search_configuration(l.language), w.words)::text AS stems) AS q) AS of_languages
        WHERE stems <> ''
    ) AS in_others
    FROM unnest($1::text[]) WITH ORDINALITY AS w (words, place)
) AS w
CROSS JOIN LATERAL (
    SELECT insight_id, count(*) OVER () AS holders FROM insights
    WHERE (to_tsvector('english', left(text, 2000)) @@ w.in_english
           OR to_tsvector(search_configuration(language), left(text, 2000)) @@ w.in_others AND language IS NOT NULL)
      AND retracted_at IS NULL
      AND ($2::text[] IS NULL OR channel_id = ANY ($2::text[]))
    ORDER BY ts DESC LIMIT $3
) AS i
GROUP BY w.place

-- How many insights have a word of each of these groups; each is a query of alternatives ("update or bump"). $3 languages besides English
-- name: count_insights_with_words
SELECT count(*) FROM insights
WHERE (to_tsvector('english', left(text, 2000)) @@ (
    SELECT string_agg('(' || websearch_to_tsquery('english', g.words)::text || ')', ' & ')::tsquery
    FROM unnest($1::text[]) AS g (words) WHERE numnode(websearch_to_tsquery('english', g.words)) > 0
) OR to_tsvector(search_configuration(language), left(text, 2000)) @@ (
    SELECT string_agg(stems, ' | ')::tsquery
    FROM (SELECT string_agg('(' || websearch_to_tsquery(search_configuration(l.language), g.words)::text || ')', ' & ') AS stems
          FROM unnest($3::text[]) AS l (language), unnest($1::text[]) AS g (words)
          WHERE numnode(websearch_to_tsquery(search_configuration(l.language), g.words)) > 0
          GROUP BY l.language) AS of_languages
) AND language IS NOT NULL) AND retracted_at IS NULL AND ($2::text[] IS NULL OR channel_id = ANY ($2::text[]))

-- The newest insights of the channels that moved last, with their vectors of a basis. $2 channels, $3 how many of each
-- name: newest_vectors
SELECT i.insight_id, i.vector
FROM (SELECT channel_id FROM channels WHERE $1::text[] IS NULL OR channel_id = ANY ($1::text[])
      ORDER BY last_arrived_at DESC NULLS LAST, channel_id LIMIT $2) AS c
CROSS JOIN LATERAL (
    SELECT insight_id, CASE WHEN embedding_model = $4 THEN embedding WHEN next_model = $4 THEN next_embedding END AS vector
    FROM insights WHERE channel_id = c.channel_id AND retracted_at IS NULL ORDER BY ts DESC LIMIT $3
) AS i
WHERE i.vector IS NOT NULL

-- name: newest_insights
SELECT insight_id FROM insights WHERE channel_id = ANY ($1::text[]) AND retracted_at IS NULL ORDER BY ts DESC LIMIT $2

-- name: insights_to_score
SELECT insight_id, channel_id, ts, left(text, 2000) AS text, source_partition, source_offset,
       CASE WHEN embedding_model = $2 THEN embedding WHEN next_model = $2 THEN next_embedding END AS vector
FROM insights WHERE insight_id = ANY ($1::text[]) AND retracted_at IS NULL
ORDER BY insight_id
