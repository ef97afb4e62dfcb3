"""The CPU compiler: a part becomes one LLVM module, run with one native call per inference."""
