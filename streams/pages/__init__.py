"""What is decided about versioned pages: what one is, how fresh it is, and what the household that owns it has to say."""
