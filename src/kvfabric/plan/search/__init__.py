"""Right-sizing: the cheapest design that meets the targets at a given load."""
