-- The last digest that was delivered of a user to a channel: the day (since 1970) and the cluster version that it reached, where the
-- next one begins. A channel is a kind and a hash of an address.
CREATE TABLE digests_sent (
    user_id         text        NOT NULL,
    channel         text        NOT NULL,
    day             bigint      NOT NULL,
    cluster_version bigint      NOT NULL,
    sent_at         timestamptz NOT NULL,
    PRIMARY KEY (user_id, channel)
);
