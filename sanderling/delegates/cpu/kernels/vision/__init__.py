"""Operators of images and boxes."""
