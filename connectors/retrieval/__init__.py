"""What chunks tell of a question: searched for whoever asks."""
