"""NVIDIA Triton: the Python model and the tritonserver process."""
