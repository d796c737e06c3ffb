"""What can be counted and measured on a finished graph."""
