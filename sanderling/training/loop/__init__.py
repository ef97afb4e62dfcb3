"""The loop: samples in batches, losses, steps, checkpoints, and how near the result is."""
