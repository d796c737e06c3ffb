"""KV geometry, capacity accounting, block pool, prefix cache and KV manager."""
