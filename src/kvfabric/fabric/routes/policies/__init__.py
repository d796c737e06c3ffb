"""The load-balancing policies, one idea per file; ``fabric.load_balancing`` makes them by name."""
