"""The client: topics and read models as tables, for notebooks and programs."""
