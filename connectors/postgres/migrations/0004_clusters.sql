-- Clusters that keep their identity: what a version is continued from, and the life of each cluster.

ALTER TABLE user_clusters
    ADD COLUMN basis_id   text,             -- the basis of the vectors that were compared; null: made before bases
    ADD COLUMN outside    json,             -- insights in no cluster, and their places on the map
    ADD COLUMN neighbours bytea,            -- of the newest version only: what saves the next rebuild its search
    ADD COLUMN left_out   int NOT NULL DEFAULT 0; -- insights whose vectors are of another basis

CREATE TABLE cluster_history (
    user_id         text        NOT NULL,
    cluster_id      text        NOT NULL,
    cluster_version bigint      NOT NULL,
    kind            text        NOT NULL,
    label           text        NOT NULL,
    size            int         NOT NULL,
    previous_size   int         NOT NULL,
    joined          int         NOT NULL,
    arrived         int         NOT NULL,
    "left"          int         NOT NULL,
    expired         int         NOT NULL,
    jaccard         double precision NOT NULL,
    related         text[]      NOT NULL,
    evolved_at      timestamptz NOT NULL,
    caused_by       text        NOT NULL,
    PRIMARY KEY (user_id, cluster_id, cluster_version, kind)
);
CREATE INDEX cluster_history_version ON cluster_history (user_id, cluster_version);
