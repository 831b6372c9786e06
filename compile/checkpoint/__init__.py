"""The files of a model come in, with its adapter, from a folder or the hub; its settings and tensors by name go out."""
