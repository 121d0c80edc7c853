-- The extension may stand in any schema.
-- name: schema_of_vectors
SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
