"""What the dashboard lists over all users."""
