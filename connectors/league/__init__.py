"""Leagues: matches, votes, posts and ratings stored, and the facts of each page."""
