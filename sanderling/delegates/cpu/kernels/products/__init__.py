"""Matrix products, and the operators that are one: cores, tiles, sources and epilogues."""
