"""Models: OpenAI-compatible services for text and vectors, their built-in replacements, and recorded calls."""
