"""Verification: what is stored and served, compared with what the log says, found by another way than it was made."""
