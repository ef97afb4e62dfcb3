"""The modules of `ai_edge_litert` under the same names: a drop-in for LiteRT 2.x in Python.

Code that says `from ai_edge_litert.compiled_model import CompiledModel` says
`from sanderling.litert.compiled_model import CompiledModel`, and nothing else changes.
docs/compiled-model.md says what is the same, what is added and what is different.
"""
