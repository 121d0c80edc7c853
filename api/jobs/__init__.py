"""Jobs over HTTP and in the command: submit and watch them, their decks and files."""
