"""What is decided about leagues: matches, pages, match windows, and how long a page is good."""
