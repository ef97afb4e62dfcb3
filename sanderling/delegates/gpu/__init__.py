"""A delegate for GPUs: kernels written once, rendered to OpenCL C and WGSL (docs/gpu.md)."""
