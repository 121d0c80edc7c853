"""What all commands are made of: how one runs, speaks to a terminal, finds an installation and publishes."""
