"""Feeds over HTTP and in the command: feed, clusters, pending, backtest."""
