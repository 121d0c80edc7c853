"""Protocols run in virtual time, with seeded choices wherever the outside is asked."""
