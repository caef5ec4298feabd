"""Data files to examples: readers, labels, entity spans, validation."""
