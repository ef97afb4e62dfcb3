"""How kernels write code: a small language over LLVM IR, vectors, mathematics, rounding; LLVM."""
