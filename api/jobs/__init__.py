"""Jobs over HTTP and in the command: submitted, watched, their decks and files."""
