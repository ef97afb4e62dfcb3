"""What runs a compiled part: the image, its memory, its workers and the cache. Needs no LLVM."""
