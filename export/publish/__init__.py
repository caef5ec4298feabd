"""Publish a run with proven engines in the layouts that other programs read."""
