"""Logits to predictions, metrics, confidence intervals and comparisons."""
