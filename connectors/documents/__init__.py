"""Documents that users upload: reading them and cutting them into chunks."""
