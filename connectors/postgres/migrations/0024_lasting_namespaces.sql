-- A namespace that holds documents, which are found however old they are: it has no life unless its passport gives one.
ALTER TABLE chunk_namespaces ADD COLUMN is_lasting boolean NOT NULL DEFAULT false;
