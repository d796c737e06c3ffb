"""Scenario files and the command line: the only place that reads files and exits."""
