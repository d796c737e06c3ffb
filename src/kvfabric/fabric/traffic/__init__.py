"""Collectives as sets of flows with dependencies, and a run of them."""
