"""The client: reads topics and read models as tables, for notebooks and programs."""
