-- Tokens of the built-in model, which costs nothing: they are part of `tokens`, and no part of what `ai_tokens_per_month` limits.
ALTER TABLE usage_entries ADD COLUMN built_in_tokens bigint NOT NULL DEFAULT 0;
ALTER TABLE usage_sequences ADD COLUMN built_in_tokens bigint NOT NULL DEFAULT 0;
