"""What is decided, and from what: settings, the clock, metrics, and per subsystem the pure rules and their agents."""
