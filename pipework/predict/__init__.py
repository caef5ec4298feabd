"""Text to prediction: the encoder, the engine and the task of a run as one object."""
