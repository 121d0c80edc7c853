"""Redis as an accelerator: the link, and the catalogue of keys."""
