"""int8 quantization of ONNX graphs, with fallback layers in a higher precision."""
