"""The checks of a backup before anything is changed."""
