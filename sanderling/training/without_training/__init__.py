"""Zeros, few values and fewer channels by statistics of samples, without training."""
