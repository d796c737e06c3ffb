"""Moves KV blocks between worker processes; ``port`` says what every way of doing so offers."""
