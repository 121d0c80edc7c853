-- When a row came into the outbox, by the server's clock: how long events wait for their relay.
ALTER TABLE outbox ADD COLUMN added_at timestamptz NOT NULL DEFAULT now();
