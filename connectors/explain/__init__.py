"""From what is served back to the events that made it."""
