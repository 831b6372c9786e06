"""A bundle's models for other programs: standard ONNX without mxspec's operators, and graphs of fixed shapes."""
