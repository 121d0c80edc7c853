"""HTTP search over the records of topics."""
