"""Queries: store the runs of the pipeline, process them stage by stage, and publish them."""
