"""Models as C libraries."""
