"""Ways to run a part of a graph. runtime/delegate.py is the contract that each of them keeps,
runtime/registry.py finds them by name."""
