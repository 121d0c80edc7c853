"""What is decided about users and organizations: folds of what they say, plans, rates of requests."""
