"""Feeds over HTTP and in commands: feed, clusters, pending, backtest."""
