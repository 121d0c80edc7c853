"""Common parts of the engines of queries and jobs: claimed work, live workers, due work."""
