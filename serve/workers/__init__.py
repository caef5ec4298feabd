"""A server of several processes: front processes answer requests, an engine process computes."""
