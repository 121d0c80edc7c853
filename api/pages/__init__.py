"""Versioned pages over HTTP: conditions, codings, lives, and the short way to a 304."""
