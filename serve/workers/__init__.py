"""A server of several worker processes, each with its own engines and its own queue."""
