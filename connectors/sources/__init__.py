"""Sources bring real data to topics; they publish and never store."""
