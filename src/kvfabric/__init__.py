"""Size, simulate and price the KV cache of an inference cluster and the fabric that carries it."""

__version__ = "0.1.0"
