-- Chunks: documents in parts that can be searched, by namespace, slot and source (R3.1).

CREATE EXTENSION IF NOT EXISTS vector;

-- The passport of a namespace (R3.16 to R3.23): what the configuration says of it, and how much it is asked.
CREATE TABLE chunk_namespaces (
    ns                  text PRIMARY KEY,
    half_life_days      double precision NOT NULL,
    ttl_days            double precision NOT NULL,
    ttl_mode            text             NOT NULL CHECK (ttl_mode IN ('filter', 'zero_weight')),
    alpha               double precision NOT NULL,
    beta                double precision NOT NULL,
    hot_days            double precision NOT NULL,
    hot_queries_per_day double precision NOT NULL,
    removal             text             NOT NULL CHECK (removal IN ('soft', 'hard')),
    grace_days          double precision NOT NULL,
    archives_cold       boolean          NOT NULL,
    is_open             boolean          NOT NULL, -- whether queries of any user may quote it
    dimensions          int,                       -- of every vector in it, from the first one on
    embedding_model     text,                      -- what its vectors are made by, from the first one made on
    is_hot              boolean          NOT NULL DEFAULT false,
    queries_per_day     double precision NOT NULL DEFAULT 0,
    rated_at            timestamptz,
    created_at          timestamptz      NOT NULL
);

-- A source: the latest ingest of it that began, and when by the broker's clock. Whoever changes chunks of a source locks its row.
-- An ingest begins with its first chunk; one that empties the source (R3.20, forced) has none and begins with its end.
CREATE TABLE chunk_sources (
    ns         text NOT NULL,
    slot       text NOT NULL,
    source_id  text NOT NULL,
    ingest_id  text    NOT NULL DEFAULT '', -- empty where only the end of one was read so far
    began_ms   bigint  NOT NULL DEFAULT -62135596800000,
    is_emptied boolean NOT NULL DEFAULT false,
    PRIMARY KEY (ns, slot, source_id)
);
-- A document is looked for by its id, wherever it was ingested.
CREATE INDEX chunk_sources_by_id ON chunk_sources (source_id);

-- An ingest of a source. `seen`: the chunk numbers that were stored or found unchanged. The four counters add up to the distinct
-- chunks received (R3.24). `revision` is that of the last progress told.
CREATE TABLE chunk_ingests (
    ingest_id        text   NOT NULL,
    ns               text   NOT NULL,
    slot             text   NOT NULL,
    source_id        text   NOT NULL,
    status           text   NOT NULL DEFAULT 'running'
                     CHECK (status IN ('running', 'complete', 'partial', 'truncated', 'failed', 'empty', 'superseded',
                                       'abandoned')),
    is_full          boolean NOT NULL DEFAULT false,
    is_forced        boolean NOT NULL DEFAULT false,
    is_truncated     boolean NOT NULL DEFAULT false,
    is_superseded    boolean NOT NULL DEFAULT false, -- another ingest of the source began after it
    pagination       jsonb,
    expected         bigint,                         -- null before its end was told
    seen             int8multirange NOT NULL DEFAULT '{}',
    inserted         bigint NOT NULL DEFAULT 0,
    updated          bigint NOT NULL DEFAULT 0,
    unchanged        bigint NOT NULL DEFAULT 0,
    failures         bigint NOT NULL DEFAULT 0,
    orphaned         bigint NOT NULL DEFAULT 0,
    revision         bigint NOT NULL DEFAULT 0,
    dealt            jsonb  NOT NULL DEFAULT '{}',   -- topic/partition -> offset of the last event of it that was dealt with
    position         text   NOT NULL,                -- of the event that changed it last
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    decided_at       timestamptz,
    PRIMARY KEY (ingest_id, ns, slot, source_id)
);
CREATE INDEX chunk_ingests_of_source ON chunk_ingests (ns, slot, source_id, created_at);

-- Chunks that were refused, each once an ingest.
CREATE TABLE chunk_failures (
    ingest_id    text   NOT NULL,
    ns           text   NOT NULL,
    slot         text   NOT NULL,
    source_id    text   NOT NULL,
    chunk_no     bigint NOT NULL,
    content_hash text   NOT NULL, -- of what was refused, so that a repetition is known
    reason       text   NOT NULL,
    detail       text   NOT NULL,
    position     text   NOT NULL,
    failed_at    timestamptz NOT NULL,
    PRIMARY KEY (ingest_id, ns, slot, source_id, chunk_no, content_hash)
);

CREATE TABLE chunks (
    ns               text        NOT NULL,
    slot             text        NOT NULL,
    source_id        text        NOT NULL,
    chunk_no         bigint      NOT NULL CHECK (chunk_no >= 0),
    content          text        NOT NULL,
    title            text,
    url              text,
    content_hash     text        NOT NULL, -- R3.2
    embedding        vector,               -- of the namespace's length; null before it is made
    embedding_model  text,                 -- what made it; `sent` for one that came with the chunk
    embedding_stale  boolean     NOT NULL DEFAULT false,
    published_at     timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    to_delete        boolean     NOT NULL DEFAULT false,
    marked_at        timestamptz,          -- since when it is to be deleted
    ingest_id        text        NOT NULL, -- the last one that wrote it
    source_partition int         NOT NULL, -- the position of the chunk that was applied last: older ones change nothing
    source_offset    bigint      NOT NULL,
    -- Kept, so that neither a search nor a new vector reads the text again.
    words            tsvector GENERATED ALWAYS AS (to_tsvector('english', coalesce(title, '') || ' ' || left(content, 8000))) STORED,
    PRIMARY KEY (ns, slot, source_id, chunk_no)
);

-- Chunks as they were when they were taken away; nobody searches them.
CREATE TABLE chunks_archive (LIKE chunks);
ALTER TABLE chunks_archive
    DROP COLUMN words,
    ADD COLUMN archived_at timestamptz NOT NULL,
    ADD COLUMN reason      text        NOT NULL CHECK (reason IN ('orphaned', 'cold'));
CREATE INDEX chunks_archive_key ON chunks_archive (ns, slot, source_id, chunk_no);

CREATE INDEX chunks_marked ON chunks (ns, marked_at) WHERE to_delete;
CREATE INDEX chunks_by_age ON chunks (ns, (coalesce(published_at, created_at)) DESC) WHERE NOT to_delete;
CREATE INDEX chunks_without_vector ON chunks (ns, slot, source_id)
    WHERE (embedding IS NULL OR embedding_stale) AND NOT to_delete;
CREATE INDEX chunks_words ON chunks USING gin (words) WHERE NOT to_delete;
