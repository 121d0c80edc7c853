-- Manual rebuilds and what became of them (R0.35); `outcome` is null until the request that serves a demand is answered.

CREATE TABLE rebuild_demands (
    user_id          text        NOT NULL,
    position         text        NOT NULL,    -- of feeds.rebuild-demanded
    revision         bigint      NOT NULL,    -- of the user when the demand was stored: a request names the last it serves
    demanded_at      timestamptz NOT NULL,    -- broker time
    outcome          text,                    -- rebuilt, unchanged, skipped or failed
    reason           text,
    cluster_version  bigint,
    request_position text,
    finished_at      timestamptz,
    PRIMARY KEY (user_id, position)
);
CREATE INDEX rebuild_demands_user ON rebuild_demands (user_id, revision);
