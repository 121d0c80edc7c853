"""Jobs: decks made step by step, documents cut into chunks, files written; their progress, limits and usage."""
