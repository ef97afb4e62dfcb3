"""How a kernel is spelt: OpenCL C and WGSL."""
