"""What CPUs offer: the rows of targets, and what this machine has."""
