"""Decisions about leagues: matches, pages, match windows, and TTLs of pages."""
