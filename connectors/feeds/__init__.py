"""Feeds: store insights, notify subscribers, rebuild clusters, build feed documents."""
