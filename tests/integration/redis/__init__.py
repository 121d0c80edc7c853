"""Redis itself: the link, a cluster of six nodes."""
