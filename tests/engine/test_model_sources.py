"""Models from directories and GGUF files are those they were written from; bad ones are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import CONFIGS, SEED, dense_logits, tiny

from kvfabric.engine.chat_template import PLAIN_TEMPLATE, ChatTemplate
from kvfabric.engine.model_sources import open_model, torch_device
from kvfabric.engine.model_spec import spec_from_config
from kvfabric.engine.random_weights import RandomWeights
from kvfabric.engine.weights import weights_digest
from kvfabric.errors import ConfigError, UnsupportedError

torch.set_num_threads(1)
IDS = [5, 1, 99, 42, 7, 8]


def write_directory(path: Path, name: str, *, shards: int = 1, prefix: str = "") -> None:
    """Write a tiny model as Hugging Face does, without a tokenizer."""
    (path / "config.json").write_text(json.dumps(CONFIGS[name] | {"eos_token_id": 3}))
    source = RandomWeights(spec_from_config(CONFIGS[name]), SEED)
    names = sorted(source.names)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard}.safetensors" if shards > 1 else "model.safetensors"
        part = {n.removeprefix(prefix): source.get(n).contiguous() for n in names[shard::shards]}
        save_file(part, path / file)
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        index = path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))


def check_same_model(path: Path, name: str) -> None:
    """Compare logits and digest with the model in memory."""
    source = open_model(str(path))
    spec, weights = tiny(name)
    read = source.load_weights("float32")
    assert torch.equal(dense_logits(source.spec, read, IDS), dense_logits(spec, weights, IDS))
    assert weights_digest(read) == weights_digest(weights)
    assert weights_digest(read) != weights_digest(tiny(name, seed=1)[1])


@pytest.mark.parametrize("name", list(CONFIGS))
def test_one_file(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path, name)
    check_same_model(tmp_path, name)


def test_shards(tmp_path: Path) -> None:
    write_directory(tmp_path, "qwen2", shards=3)
    check_same_model(tmp_path, "qwen2")


def test_gpt2_without_prefix(tmp_path: Path) -> None:
    """As the original repository spells its tensors."""
    write_directory(tmp_path, "gpt2", prefix="transformer.")
    check_same_model(tmp_path, "gpt2")


def test_end_tokens_of_generation_config_count(tmp_path: Path) -> None:
    write_directory(tmp_path, "llama")
    assert open_model(str(tmp_path)).spec.eos_token_ids == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert open_model(str(tmp_path)).spec.eos_token_ids == (3, 4)


_GGUF_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}  # fmt: skip
_GGUF_TOP = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}  # fmt: skip


def write_gguf(path: Path, name: str) -> None:
    """Write a tiny model as ``convert_hf_to_gguf.py`` does."""
    gguf = pytest.importorskip("gguf")
    config: dict[str, Any] = dict(CONFIGS[name])
    writer = gguf.GGUFWriter(path, config["model_type"])
    gpt2 = name == "gpt2"
    hidden = config["n_embd"] if gpt2 else config["hidden_size"]
    heads = config["n_head"] if gpt2 else config["num_attention_heads"]
    writer.add_block_count(3)
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(4 * hidden if gpt2 else config["intermediate_size"])
    writer.add_head_count(heads)
    if gpt2:
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_head_count_kv(2)
        writer.add_key_length(16)
        writer.add_layer_norm_rms_eps(1e-5)
    source = RandomWeights(spec_from_config(config), SEED)
    for tensor in source.names:
        stem, kind = tensor.rsplit(".", 1)
        values = source.get(tensor).numpy()
        if stem in _GGUF_TOP:
            writer.add_tensor(f"{_GGUF_TOP[stem]}.{kind}", values)
            continue
        layer, part = stem.split(".", 3)[2:]
        if gpt2 and values.ndim == 2:
            values = np.ascontiguousarray(values.T)
        if config["model_type"] == "llama" and part in {"self_attn.q_proj", "self_attn.k_proj"}:
            rows = heads if "q_proj" in part else 2
            halves = values.reshape(rows, 2, -1, *values.shape[1:]).swapaxes(1, 2)
            values = np.ascontiguousarray(halves).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{_GGUF_LAYER[part]}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gpt2"])
def test_gguf(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, name)
    source = open_model(str(path))
    spec, weights = tiny(name)
    got = dense_logits(source.spec, source.load_weights("float32"), IDS)
    assert float((got - dense_logits(spec, weights, IDS)).abs().max()) < 1e-5


@pytest.mark.parametrize("size", [0, 3, 20, 200, -10])
def test_cut_gguf(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match="not a GGUF file"):
        open_model(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"num_key_value_heads": 4}, "6 attention heads do not divide into 4"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
    ],
)
def test_refused_configs(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_from_config(CONFIGS["llama"] | change)


def test_missing_key_is_named() -> None:
    config = {key: value for key, value in CONFIGS["llama"].items() if key != "vocab_size"}
    with pytest.raises(ConfigError, match="key 'vocab_size' is missing"):
        spec_from_config(config)


def _without_shard(path: Path) -> None:
    (path / "model-1.safetensors").unlink()


def _escaping_shard(path: Path) -> None:
    index = {"weight_map": {"x": "../other.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _broken_shard(path: Path) -> None:
    (path / "model-1.safetensors").write_bytes(b"nothing")


def _other_shape(path: Path) -> None:
    config = CONFIGS["llama"] | {"intermediate_size": 95}
    (path / "config.json").write_text(json.dumps(config))


def _more_layers(path: Path) -> None:
    config = CONFIGS["llama"] | {"num_hidden_layers": 4}
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without_shard, "shard model-1.safetensors is missing"),
        (_escaping_shard, "is no file name"),
        (_broken_shard, "cannot read it"),
        (_other_shape, "has shape"),
        (_more_layers, "no tensor 'model.layers.3"),
    ],
)
def test_damaged_directories(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write_directory(tmp_path, "llama", shards=2)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=message):
        open_model(str(tmp_path)).load_weights("float32")


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="model 'nowhere' not found"):
        open_model("nowhere")
    with pytest.raises(UnsupportedError, match="model_type is 'rnn'"):
        open_model("random:rnn")
    with pytest.raises(ConfigError, match="dtype 'float8'"):
        open_model("random:qwen3").load_weights("float8")
    for text in ("quantum", "meta", "cuda:77"):
        with pytest.raises(ConfigError, match="device"):
            torch_device(text)


def test_chat_templates() -> None:
    talk = [{"role": "user", "content": "Hi <b>"}]
    assert ChatTemplate(PLAIN_TEMPLATE).render(talk) == "user: Hi <b>\nassistant: "
    bos = ChatTemplate("{{ bos_token }}{{ messages[0]['content'] }}", {"bos_token": "<s>"})
    assert bos.render(talk) == "<s>Hi <b>"
    with pytest.raises(ConfigError, match="refuses the messages: only one"):
        ChatTemplate("{{ raise_exception('only one') }}").render(talk)
    with pytest.raises(ConfigError, match="refuses the messages"):
        ChatTemplate("{{ messages.__class__.__mro__ }}").render(talk)
    with pytest.raises(ConfigError, match="is broken"):
        ChatTemplate("{% for %}")
