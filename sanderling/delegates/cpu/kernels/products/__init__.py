"""Matrix products, and the operators that are one: cores, tiles and sources."""
