"""Models: OpenAI-compatible services for text and for vectors, what stands in for them, and calls written down."""
