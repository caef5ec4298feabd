"""Linear models, which are fitted, not trained in steps."""
