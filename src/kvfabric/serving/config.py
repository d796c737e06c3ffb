"""Settings of one worker's scheduler."""

from dataclasses import dataclass

from kvfabric.errors import CapacityError, ConfigError
from kvfabric.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a worker; the names are vLLM's.

    Attributes:
        num_blocks: KV blocks, the null block included.
        block_size: tokens per block.
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens per step (the token budget).
        max_model_len: most tokens of one request, prompt and output.
        enable_prefix_caching: find full blocks again by prefix.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot run."""
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="Write 1 or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
                f"{self.max_num_seqs}",
                hint="A step must be able to decode every running request",
            )
        needed = ceil_div(self.max_model_len, self.block_size)
        if needed > self.num_blocks - 1:
            raise CapacityError(
                f"one request of max_model_len {self.max_model_len} needs {needed} KV blocks, the "
                f"worker has {self.num_blocks - 1}"
            )
