"""PostgreSQL: the pool, the migrations, and the named statements of each room."""
