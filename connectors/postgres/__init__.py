"""PostgreSQL: the pool, the migrations, and how rooms name their statements."""
