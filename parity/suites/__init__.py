"""Suites: whole comparisons with an engine that is installed on the node."""
