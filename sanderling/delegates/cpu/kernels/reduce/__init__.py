"""What works along axes: reductions, pools, norms, softmax, searches."""
