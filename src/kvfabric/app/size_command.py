"""``kvfabric size``: options in, the sizing as text or JSON out."""

import json
from collections.abc import Mapping
from typing import Any

from kvfabric.app.flags import told_by_flag
from kvfabric.app.models import load_geometry
from kvfabric.catalog.gpus import gpu
from kvfabric.errors import ConfigError
from kvfabric.plan.sizing import Sizing, size, sizing_to_dict
from kvfabric.plan.sizing_lines import sizing_lines
from kvfabric.plan.sizing_request import SizingRequest

_NAMES = (
    "context", "tp", "pp", "kv_dtype", "weight_dtype", "block_size", "max_model_len",
    "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "kv_memory_gib",
)  # fmt: skip
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _NAMES}


def run_size(options: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what the command prints, and whether the model and one user's context fit.

    Raises:
        ConfigError: names the flag and what to write instead.
    """
    with told_by_flag(_FLAGS):
        sizing = _size(options)
    if options["output_format"] == "json":
        return json.dumps(sizing_to_dict(sizing), indent=2) + "\n", sizing.fits
    return "\n".join(sizing_lines(sizing)) + "\n", sizing.fits


def _size(options: Mapping[str, Any]) -> Sizing:
    context = options["context"] or options["max_model_len"]
    if context is None:
        raise ConfigError(
            "no context length", where="--context", hint="Write the tokens per user, such as 32000"
        )
    return size(
        SizingRequest(
            model_name=options["model"],
            geometry=load_geometry(options["model"], where="--model"),
            gpu=gpu(options["gpu"], where="--gpu"),
            num_users=options["users"],
            num_context_tokens=context,
            tp=options["tp"],
            pp=options["pp"],
            kv_dtype=options["kv_dtype"],
            weight_dtype=options["weight_dtype"],
            block_size=options["block_size"],
            max_model_len=options["max_model_len"],
            max_num_batched_tokens=options["max_num_batched_tokens"],
            max_num_seqs=options["max_num_seqs"],
            gpu_memory_utilization=options["gpu_memory_utilization"],
            kv_memory_gib=options["kv_memory_gib"],
        )
    )
