"""Leagues: stores matches, votes, posts and ratings, and the facts of each page."""
