"""The state of one request: options, timings, context, statistics."""
