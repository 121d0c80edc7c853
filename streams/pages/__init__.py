"""Decisions about versioned pages: their kinds, their freshness, and the rules of the slice that owns them."""
