"""The compiler's own ops: names, the record of what is fused in, its rules and its meaning."""
