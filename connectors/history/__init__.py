"""The rows that keep the history of figures for a day."""
