"""Models: OpenAI-compatible services for text and for vectors, and what stands in for them."""
