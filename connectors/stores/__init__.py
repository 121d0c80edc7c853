"""PostgreSQL (what is) and Redis (what can be rebuilt): statements, migrations, keys."""
