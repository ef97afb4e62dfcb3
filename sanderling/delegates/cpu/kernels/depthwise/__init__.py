"""Depthwise convolutions, alone and in one step with the 1x1 convolutions around them."""
