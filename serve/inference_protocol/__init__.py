"""The Open Inference Protocol with Triton's extensions, over HTTP and gRPC.

https://github.com/kserve/open-inference-protocol and Triton's extension for binary tensors,
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""
