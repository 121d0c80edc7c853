-- Groups and topics of other applications whose figures are recorded: the 20 of each kind that were looked at last, for a day
-- (streams/history.py). Their figures are in `history_samples`. In no backup, as those.
CREATE TABLE history_watched (
    kind         text   NOT NULL CHECK (kind IN ('group', 'topic')),
    name         text   NOT NULL,
    looked_at_ms bigint NOT NULL, -- in ms since 1970
    PRIMARY KEY (kind, name)
);
