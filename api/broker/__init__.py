"""Topics, consumer groups and schemas as the broker and the registry have them, over HTTP."""
