"""What becomes of accumulators, for products, Winograd's and depthwise convolutions alike."""
