"""Dead letters for people: read, sent again, edited, deleted; the same for the command and the dashboard."""
