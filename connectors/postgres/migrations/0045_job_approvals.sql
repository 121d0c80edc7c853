-- Until when a job waits for somebody's approval of its outline, in ms since 1970; null: it does not wait.
ALTER TABLE jobs ADD COLUMN approval_until_ms bigint;
