"""What is decided about calls of models: retries, tokens, costs, what an answer must be."""
