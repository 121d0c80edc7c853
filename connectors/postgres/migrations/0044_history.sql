-- The history that the charts of the overview show: a sample a minute for a day (streams/history.py), so at most 1,441 rows. It is
-- made of other state and in no backup.
CREATE TABLE history_samples (
    at_ms   bigint NOT NULL PRIMARY KEY, -- when the minute began, in ms since 1970
    figures jsonb  NOT NULL              -- metric -> label -> value
);
