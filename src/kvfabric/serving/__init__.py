"""Scheduler, router and P-D hand-off: decisions only, no clock and no I/O."""
