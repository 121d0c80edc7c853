-- Jobs: organizations, jobs and what they make, blobs, usage.

-- An organization that nobody told of has the plan free and an active subscription.
CREATE TABLE organizations (
    organization_id     text PRIMARY KEY,
    plan                text        NOT NULL DEFAULT 'free' CHECK (plan IN ('free', 'pro', 'team', 'enterprise')),
    subscription_status text        NOT NULL DEFAULT 'active'
                                    CHECK (subscription_status IN ('active', 'trialing', 'past_due', 'suspended')),
    period_end          timestamptz,
    arrived_ms          bigint      NOT NULL, -- broker time of the event that said so; a later one wins
    position            text        NOT NULL,
    changed_at          timestamptz NOT NULL
);

-- The event that gave a role: a later one wins, and one that is stored already is known.
ALTER TABLE user_roles ADD COLUMN arrived_ms bigint NOT NULL DEFAULT 0, ADD COLUMN position text NOT NULL DEFAULT '';

-- One row a job. Whoever works on it has raised its epoch last; `due_ms`, `lease_until_ms` and `worker` are as those of
-- `pipeline_runs`. `checkpoint`: what the next worker goes on from. `seq`: the last progress told.
CREATE TABLE jobs (
    job_id          uuid PRIMARY KEY,
    kind            text        NOT NULL CHECK (kind IN ('generation', 'ingestion', 'export')),
    organization_id text        NOT NULL,
    user_id         text        NOT NULL,
    args            jsonb       NOT NULL,
    status          text        NOT NULL CHECK (status IN ('pending', 'running', 'completed', 'failed', 'revoked', 'expired')),
    epoch           bigint      NOT NULL DEFAULT 0,
    worker          int,
    attempt         int         NOT NULL DEFAULT 0,
    unusable        int         NOT NULL DEFAULT 0,
    returns         int         NOT NULL DEFAULT 0,
    lease_until_ms  bigint,
    due_ms          bigint,
    expires_ms      bigint,
    seq             bigint      NOT NULL DEFAULT 0,
    progress_pct    int         NOT NULL DEFAULT 0 CHECK (progress_pct BETWEEN 0 AND 100),
    steps_done      int         NOT NULL DEFAULT 0,
    steps_total     int         NOT NULL DEFAULT 0,
    checkpoint      jsonb,
    result          jsonb,
    tokens          bigint      NOT NULL DEFAULT 0,
    cost_usd        numeric(14, 8) NOT NULL DEFAULT 0,
    cost_cents      bigint,                   -- as it was counted, once the job was (R2.36)
    error           text,
    arrived_ms      bigint      NOT NULL,
    position        text        NOT NULL,
    caused_by       text        NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    completed_at    timestamptz
);
CREATE INDEX jobs_of_organization ON jobs (organization_id, created_at);
CREATE INDEX jobs_due ON jobs (kind, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX jobs_held ON jobs (kind, worker, lease_until_ms) WHERE worker IS NOT NULL;
CREATE INDEX jobs_waiting ON jobs (kind, updated_at) WHERE status = 'pending';
-- What usage can be recomputed from (R2.37).
CREATE VIEW generation_jobs AS SELECT * FROM jobs WHERE kind = 'generation';

-- Calls for jobs stand beside those for queries: `run_id` is the job, `stage` its step, and no user of queries is named.
ALTER TABLE llm_calls ALTER COLUMN user_id DROP NOT NULL;

-- What a generation makes; its id is that of its job. `slides`: JSON array in order.
CREATE TABLE presentations (
    presentation_id uuid PRIMARY KEY,
    organization_id text        NOT NULL,
    user_id         text        NOT NULL,
    title           text        NOT NULL,
    slides          jsonb       NOT NULL,
    position        text        NOT NULL,
    created_at      timestamptz NOT NULL
);
CREATE TABLE presentation_shares (
    presentation_id text PRIMARY KEY,
    view_count      bigint NOT NULL DEFAULT 0
);

-- Documents and files by the SHA-256 of their bytes, in parts of 1 MiB.
CREATE TABLE blobs (
    sha256     text PRIMARY KEY CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint      NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE TABLE blob_parts (
    sha256  text  NOT NULL REFERENCES blobs ON DELETE CASCADE,
    part    int   NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (sha256, part)
);
-- Documents and decks are compressed already; a try would only cost time.
ALTER TABLE blob_parts ALTER COLUMN content SET STORAGE EXTERNAL;
-- Who may read a blob: organizations that have put it, whoever put it first, each by the media type it gave.
CREATE TABLE blob_owners (
    sha256          text        NOT NULL REFERENCES blobs ON DELETE CASCADE,
    organization_id text        NOT NULL,
    media_type      text        NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (sha256, organization_id)
);
CREATE INDEX blob_owners_of_organization ON blob_owners (organization_id);

-- The last place given to a usage in its organization and period; its row lock orders them.
CREATE TABLE usage_sequences (
    organization_id text   NOT NULL,
    period          text   NOT NULL,
    last_seq        bigint NOT NULL,
    PRIMARY KEY (organization_id, period)
);
-- Usage as it was flushed (R2.37): absolute, only ever raised.
CREATE TABLE usage_records (
    organization_id text        NOT NULL,
    period          text        NOT NULL CHECK (period ~ '^[0-9]{4}-[0-9]{2}$'),
    presentations   bigint      NOT NULL,
    slides          bigint      NOT NULL,
    tokens          bigint      NOT NULL,
    cost_cents      bigint      NOT NULL,
    upto_seq        bigint      NOT NULL,
    flushed_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, period)
);

-- Vectors of the semantic cache (R2.25, R2.26): of one organization and one set of documents only are they compared.
CREATE TABLE semantic_vectors (
    hash            text        NOT NULL,
    organization_id text        NOT NULL,
    sources_hash    text        NOT NULL,
    model           text        NOT NULL,
    embedding       bytea       NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, sources_hash, hash)
);
CREATE INDEX semantic_vectors_created ON semantic_vectors (created_at);
