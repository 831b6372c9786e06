"""A configuration comes in, and a model without weights is built of it; its raw ONNX graph goes out."""
