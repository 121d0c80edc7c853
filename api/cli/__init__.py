"""The command line `highwater`: one module per group of commands."""
