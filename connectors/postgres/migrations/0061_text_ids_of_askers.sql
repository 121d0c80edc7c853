-- Users of queries may have any id: `user_id` is the key of one that is no UUID (streams/queries/users.py), and this the id itself.
ALTER TABLE pipeline_runs ADD COLUMN user_text_id text;
