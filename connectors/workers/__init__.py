"""Workers do what was decided: they re-check before they work, store the outcome first, and always report it."""
