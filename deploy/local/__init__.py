"""The local stack: broker, schema registry, database and Redis as child processes, and their supervisor."""
