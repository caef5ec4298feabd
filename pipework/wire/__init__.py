"""The data that clients and servers exchange: schemas, tensors of texts, names of headers."""
