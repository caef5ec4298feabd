"""Rows to batches: tokenizer, token cache, labels, length-grouped batches."""
