"""Where the time of a call goes, by ONNX Runtime's profiler."""
