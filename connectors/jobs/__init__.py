"""Jobs: decks, ingestions and exports, made step by step, and their usage."""
