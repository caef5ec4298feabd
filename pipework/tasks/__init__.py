"""What depends on the kind of task: labels, decoding, scores, comparison, texts. No torch."""
