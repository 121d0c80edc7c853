-- Which languages a namespace has besides English: most tables have no such row, so these indexes are empty or small. Built beside
-- readers and writers; what an interrupted build left is dropped first.
DROP INDEX CONCURRENTLY IF EXISTS chunks_languages;
CREATE INDEX CONCURRENTLY chunks_languages ON chunks (ns, language) WHERE language IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS former_chunks_languages;
CREATE INDEX CONCURRENTLY former_chunks_languages ON former_chunks (ns, language) WHERE language IS NOT NULL;

-- The words of insights in their language. In `insights_words` they stand as English ones too: there the last release finds them.
DROP INDEX CONCURRENTLY IF EXISTS insights_words_of_languages;
CREATE INDEX CONCURRENTLY insights_words_of_languages ON insights
USING gin (to_tsvector(search_configuration(language), left(text, 2000))) WHERE retracted_at IS NULL AND language IS NOT NULL;
