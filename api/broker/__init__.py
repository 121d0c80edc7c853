"""HTTP routes for the topics and consumer groups of the broker and the schemas of the registry."""
