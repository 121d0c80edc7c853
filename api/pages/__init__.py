"""Versioned pages over HTTP: conditional reads, codings, cache lifetimes, and the shortcut to a 304."""
