"""Run a bundle on ONNX Runtime."""
