"""Trace readers and generators."""
