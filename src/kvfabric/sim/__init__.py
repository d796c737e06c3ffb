"""The virtual-time driver: serving, perf and fabric on one event heap."""
