"""What is decided about versioned pages: how fresh one is."""
