"""Operators element by element: expressions over broadcast tensors, and tables of codes."""
