"""Queries: store the runs of the pipeline, work on them stage by stage, and publish them."""
