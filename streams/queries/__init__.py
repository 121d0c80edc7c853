"""Queries: a run of the language-model pipeline as a state machine on the log."""
