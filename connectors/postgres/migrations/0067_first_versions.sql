-- A first version waits for the vectors of the configured model, or is preliminary until it is replaced (decision 53).
ALTER TABLE user_stats ADD COLUMN vectors_awaited_since timestamptz; -- null: no rebuild waits for vectors
ALTER TABLE user_clusters
    ADD COLUMN preliminary          boolean NOT NULL DEFAULT false, -- of built-in vectors, until the model has read the window
    ADD COLUMN replacement_asked_at timestamptz,                    -- when a preliminary one was asked to be replaced
    ADD COLUMN regrouped            boolean NOT NULL DEFAULT false; -- of another model version than the one before it
