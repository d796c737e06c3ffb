"""Size, simulate and price the KV cache of an inference cluster and the fabric that carries it."""

from kvfabric.compiled_core import use_compiled_core

__version__ = "0.1.0"

use_compiled_core()
