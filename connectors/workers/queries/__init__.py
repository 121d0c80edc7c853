"""The stages of the query pipeline: captured, called, stored, handed on."""
