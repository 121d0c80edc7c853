"""Rebuilds table rows that changelogs have lost, from the events."""
