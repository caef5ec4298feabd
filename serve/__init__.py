"""HTTP and gRPC servers for exported models. Imports neither torch, transformers nor train."""
