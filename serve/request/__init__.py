"""State of one request: options, timings, context and statistics."""
