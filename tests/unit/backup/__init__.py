"""What is checked of a backup before anything is changed."""
