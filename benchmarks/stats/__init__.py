"""Percentiles, confidence intervals and ratios."""
