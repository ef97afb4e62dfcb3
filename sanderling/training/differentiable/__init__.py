"""The differentiable twin of a graph: a function for each operator, and the PyTorch module."""
