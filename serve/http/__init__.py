"""The HTTP server: connections, admission, authentication, routes, shutdown."""
