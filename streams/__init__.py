"""Pure decisions and their inputs: settings, the clock, metrics, and per subsystem the rules and their agents."""
