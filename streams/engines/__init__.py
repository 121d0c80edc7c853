"""What queries and jobs share: the work that a worker claims, and the form of its state tables."""
