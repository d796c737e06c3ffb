"""Frozen records and Protocol ports that cross package lines."""
