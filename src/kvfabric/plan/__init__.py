"""Sizing, parts and price, comparison and verdicts."""
