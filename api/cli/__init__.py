"""The command line `highwater`: one module a group of commands."""
