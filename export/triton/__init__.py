"""Export to Triton model repositories."""
