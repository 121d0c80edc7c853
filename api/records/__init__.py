"""Records of topics, searched over HTTP."""
