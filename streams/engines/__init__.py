"""What queries and jobs have in common: work that a worker holds, and how its states are tabled."""
