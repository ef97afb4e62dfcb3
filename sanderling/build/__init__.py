"""From a model to a C library: the compiled code, its weights and a small runtime, without Python.

`library.py` has the stages in a row. The order of the modules is that of `tests/test_imports.py`.
"""
