"""Scenarios of the recorded vLLM runs that ``kvfabric validate`` simulates.

They are those of ``examples/``, which an installed package does not have.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_RTX_4090 = """\
schema_version: 1
name: Llama-3.1-8B on an RTX 4090, as recorded
model: llama-3.1-8b
gpu: rtx-4090
workers:
  prefill: 1
  decode: 0
  tp: 1
  num_blocks: 2588
  block_size: 16
  max_num_seqs: 256
  max_num_batched_tokens: 2048
  max_model_len: 32768
perf: {kind: profile}
workload: {kind: trace, format: recorded_run}
"""

_RTX_PRO_6000 = """\
schema_version: 1
name: Llama-3.1-8B on an RTX PRO 6000, as recorded
model: llama-3.1-8b
workers:
  prefill: 1
  decode: 0
  tp: 1
  num_blocks: 36578
  block_size: 16
  max_num_seqs: 128
  max_num_batched_tokens: 2048
perf: {kind: profile}
workload: {kind: trace, format: recorded_run}
"""

VLLM_SCENARIOS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rtx-4090": _RTX_4090,
        "rtx-4090-roofline": _RTX_4090.replace("kind: profile", "kind: roofline"),
        "rtx-pro-6000": _RTX_PRO_6000,
    }
)
"""YAML by the name of the run, and by which step times if not by the profile."""
