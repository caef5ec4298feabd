"""The Open Inference Protocol, as Triton speaks it.

https://github.com/kserve/open-inference-protocol and Triton's extension of it for binary tensors,
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""
