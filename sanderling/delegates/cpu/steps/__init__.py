"""From a prepared graph to a program: places in memory, steps in order, what a dump shows."""
