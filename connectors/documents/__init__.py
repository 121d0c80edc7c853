"""Documents as they are put by users: read, and cut into chunks."""
