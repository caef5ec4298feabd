"""HTTP and gRPC servers for exported models. Imports neither torch, transformers nor train."""

import os

# Otherwise gRPC logs each failed TLS handshake and each closed connection. It reads the variable
# when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
