"""Dead letters for people: read, resend, edit and delete; the same for commands and the dashboard."""
