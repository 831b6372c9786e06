"""A bundle's models for other programs: standard ONNX without our operators, and graphs of fixed shapes."""
