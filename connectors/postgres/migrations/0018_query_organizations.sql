-- Queries are charged to organizations, as jobs are. Null: the operator's own, asked with a key that is bound to nobody.
ALTER TABLE pipeline_runs ADD COLUMN organization_id text;
