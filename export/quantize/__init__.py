"""int8 quantization of ONNX graphs."""
