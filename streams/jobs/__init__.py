"""Jobs: decks made slide by slide, documents cut into chunks, files written; their progress, limits and usage."""
