"""Jobs: decks, ingestions and exports, made step by step, with what they used."""
