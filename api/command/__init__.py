"""The common parts of all commands: running, printing, finding an installation and publishing."""
