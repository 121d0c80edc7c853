-- Which documents hold which objects, so that what is withdrawn (a retracted insight, a deleted chunk) is found in every document
-- and copy that shows it. Objects have dense numbers within a space: insights within a channel, chunks within a source. So a
-- document's objects of one space are a few ranges, however many they are.
CREATE TABLE surrogate_keys (
    document text           NOT NULL, -- clusters:{user}, feed:{user}, run:{id}, deck:{id}
    version  bigint         NOT NULL, -- of clusters and feeds: the cluster version; 0 where there is only one
    space    text           NOT NULL, -- channel:{channel}, source:{namespace}|{slot}|{source}
    numbers  int8multirange NOT NULL,
    PRIMARY KEY (document, version, space)
);
CREATE INDEX surrogate_keys_space ON surrogate_keys (space);

-- How often insights of a version were retracted since it was stored: 0, and it is shown as it is. `told_since`, of the newest
-- version: every change after this one is still told in `cluster_history`, whatever the setting was when some were forgotten.
ALTER TABLE user_clusters
    ADD COLUMN redactions int NOT NULL DEFAULT 0,
    ADD COLUMN told_since bigint NOT NULL DEFAULT 0;
-- Of what was stored before, no less than is known: births are kept when all else of their version is forgotten.
UPDATE user_clusters AS c SET told_since = coalesce(
    (SELECT min(h.cluster_version) FROM cluster_history AS h WHERE h.user_id = c.user_id AND h.kind <> 'born'),
    c.cluster_version);
-- Whose clusters were ever made of a channel.
CREATE INDEX user_cluster_hwm_channel ON user_cluster_hwm (channel_id, user_id);

-- `redactions`: how often something was withdrawn from a run. `withdrawn`: what was, while the run is still at work: a list of
-- [channel or namespace, id, text].
ALTER TABLE pipeline_runs ADD COLUMN redactions int NOT NULL DEFAULT 0, ADD COLUMN withdrawn jsonb;
INSERT INTO surrogate_keys
SELECT 'run:' || r.id, 0, 'channel:' || i.channel_id, range_agg(int8range(i.seq, i.seq, '[]'))
FROM pipeline_runs AS r, jsonb_array_elements(r.sources) AS one JOIN insights AS i ON i.insight_id = one ->> 'insight_id'
WHERE jsonb_typeof(r.sources) = 'array' AND starts_with(one ->> 'position', 'feeds.insight-ingested/')
GROUP BY 1, 3;
INSERT INTO surrogate_keys
SELECT 'run:' || r.id, 0, 'source:' || (one ->> 'channel_id') || '|' || regexp_replace(one ->> 'insight_id', '\|[0-9]+$', ''),
       range_agg(int8range(n.number, n.number, '[]'))
FROM pipeline_runs AS r, jsonb_array_elements(r.sources) AS one,
     LATERAL (SELECT substring(one ->> 'insight_id' FROM '[0-9]+$')::bigint AS number) AS n
WHERE jsonb_typeof(r.sources) = 'array' AND starts_with(one ->> 'position', 'chunks.')
GROUP BY 1, 3;

INSERT INTO surrogate_keys
SELECT held.document, held.cluster_version, 'channel:' || i.channel_id, range_agg(int8range(i.seq, i.seq, '[]'))
FROM (
    SELECT kind || c.user_id AS document, c.cluster_version, json_array_elements_text(one -> 'insight_ids') AS insight_id
    FROM user_clusters AS c, json_array_elements(c.clusters) AS one, unnest(ARRAY['clusters:', 'feed:']) AS kind
    UNION ALL
    SELECT 'clusters:' || user_id, cluster_version, json_array_elements_text(outside -> 'insight_ids')
    FROM user_clusters WHERE outside IS NOT NULL
) AS held JOIN insights AS i USING (insight_id)
GROUP BY 1, 2, 3;

-- What was retracted before stays hidden from now on, under tags of its own.
UPDATE user_clusters AS c SET redactions = 1
WHERE EXISTS (
    SELECT FROM surrogate_keys AS s
    JOIN insights AS i ON 'channel:' || i.channel_id = s.space AND s.numbers @> i.seq AND i.retracted_at IS NOT NULL
    WHERE s.document = 'clusters:' || c.user_id AND s.version = c.cluster_version);
DELETE FROM feed_documents AS f USING user_clusters AS c WHERE c.user_id = f.user_id AND c.redactions > 0;
UPDATE resource_versions AS held
SET version = held.version + 1, etag = resource_tag(held.key, held.version + 1, held.position, held.changed_at, NULL)
FROM user_clusters AS c
WHERE c.redactions > 0 AND held.key IN ('clusters:' || c.user_id, 'feed:' || c.user_id);
