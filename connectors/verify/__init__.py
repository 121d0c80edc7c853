"""Verification: compares what is stored and served with the log, computed in another way."""
