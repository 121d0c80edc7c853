"""A foreign checker: clients that know only the outside contract, the history of what they did, and checks of it."""
