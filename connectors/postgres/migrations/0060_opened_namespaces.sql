-- A namespace that an import opened to questions: answers may quote it unless its passport sets is_open.
ALTER TABLE chunk_namespaces ADD COLUMN is_opened boolean NOT NULL DEFAULT false;
