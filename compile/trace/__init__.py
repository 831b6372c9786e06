"""From a model without weights to a raw ONNX graph."""
