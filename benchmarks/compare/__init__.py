"""Comparison of results and of two live targets."""
