"""Topologies, paths, load balancing and flow engines."""
