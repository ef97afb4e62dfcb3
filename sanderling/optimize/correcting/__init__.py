"""Samples that calibrate, judge and correct, and the corrections made by them."""
