"""The KV cache of one worker in numbers: what two workers must agree on to exchange blocks.

No torch here, so that the control process can size pools and compare layouts.
"""

from dataclasses import dataclass

from kvfabric.errors import ConfigError

BYTES_BY_KV_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
SCALE_BYTES = 4  # int8: one fp32 scale per token and head


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Shape of a pool ``[layers, 2, blocks, block_size, kv_heads, head_dim]``, less its blocks.

    Attributes:
        kv_dtype: how a value is stored: float32, bfloat16, float16 or int8 (with scales).
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str

    def __post_init__(self) -> None:
        """Refuse an unknown dtype and sizes below 1."""
        if self.kv_dtype not in BYTES_BY_KV_DTYPE:
            known = ", ".join(BYTES_BY_KV_DTYPE)
            raise ConfigError(f"KV dtype {self.kv_dtype!r}", hint=f"Write one of {known}")
        if min(self.num_layers, self.block_size, self.num_kv_heads, self.head_dim) < 1:
            raise ConfigError(f"a KV cache of {self}", hint="All sizes must be 1 or more")

    @property
    def values_per_block(self) -> int:
        """Return the K values of one block in one layer; as many V values lie beside them."""
        return self.block_size * self.num_kv_heads * self.head_dim

    @property
    def block_bytes_per_layer(self) -> int:
        """Return the bytes of K and V of one block in one layer, scales included."""
        num_bytes = 2 * self.values_per_block * BYTES_BY_KV_DTYPE[self.kv_dtype]
        if self.kv_dtype == "int8":
            num_bytes += 2 * self.block_size * self.num_kv_heads * SCALE_BYTES
        return num_bytes

    @property
    def block_bytes(self) -> int:
        """Return the bytes of one block in all layers."""
        return self.num_layers * self.block_bytes_per_layer

    def wire_bytes(self, num_blocks: int, num_layers: int) -> int:
        """Return the bytes of whole blocks of some layers, as they are transferred."""
        return num_blocks * num_layers * self.block_bytes_per_layer
