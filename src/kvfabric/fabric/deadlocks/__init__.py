"""Buffers that wait for each other: which there are, whether in a circle, and the way out."""
