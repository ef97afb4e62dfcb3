"""Ways to run a part of a graph. Each is found by name, see runtime/delegate.py."""
