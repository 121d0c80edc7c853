"""The protocols in virtual time: the product's own code, a model of its store and log, and faults at every call between them."""
