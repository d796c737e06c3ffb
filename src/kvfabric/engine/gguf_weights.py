"""Shape and tensors of a model in a GGUF file, under the names of Hugging Face.

GGUF stores Q and K of Llama with rotary pairs side by side; they are put back into halves here.
Source: ``convert_hf_to_gguf.py`` of llama.cpp (``LlamaModel.permute``, tensor names).
"""

from collections.abc import Set as AbstractSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvfabric.engine.gguf_file import GgufFile
from kvfabric.engine.model_spec import Family, ModelSpec, spec_from_config
from kvfabric.errors import UnsupportedError

_ROTARY_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ROTARY_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GPT2_TOP = {
    "token_embd.weight": "transformer.wte.weight",
    "position_embd.weight": "transformer.wpe.weight",
    "output_norm.weight": "transformer.ln_f.weight",
    "output_norm.bias": "transformer.ln_f.bias",
}
_GPT2_LAYER = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """Return the shape of the model in a GGUF file.

    Raises:
        UnsupportedError: a family or a feature the engine does not run.
    """
    where = str(file.path)
    arch = file.required("general.architecture")
    if "rope_freqs.weight" in file.tensor_names or file.value(f"{arch}.rope.scaling.type") not in {
        None,
        "none",
    }:
        hint = "Use the model's safetensors directory"
        raise UnsupportedError("rope scaling in a GGUF file", where=where, hint=hint)
    eos = file.value("tokenizer.ggml.eos_token_id")
    config = {"model_type": arch, "eos_token_id": eos}
    tied = "output.weight" not in file.tensor_names
    if arch == Family.GPT2.value:
        config |= _gpt2_config(file)
    elif arch in {family.value for family in Family}:
        config |= _rotary_config(file, arch) | {"tie_word_embeddings": tied}
    return spec_from_config(config, where=where)


def _rotary_config(file: GgufFile, arch: str) -> dict[str, object]:
    heads = file.required(f"{arch}.attention.head_count")
    hidden = file.required(f"{arch}.embedding_length")
    head_dim = file.value(f"{arch}.attention.key_length") or hidden // heads
    return {
        "num_hidden_layers": file.required(f"{arch}.block_count"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": file.value(f"{arch}.attention.head_count_kv"),
        "head_dim": head_dim,
        "partial_rotary_factor": file.value(f"{arch}.rope.dimension_count", head_dim) / head_dim,
        "intermediate_size": file.required(f"{arch}.feed_forward_length"),
        "vocab_size": file.shape("token_embd.weight")[0],
        "max_position_embeddings": file.required(f"{arch}.context_length"),
        "rms_norm_eps": file.required(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.value(f"{arch}.rope.freq_base", 10_000.0),
    }


def _gpt2_config(file: GgufFile) -> dict[str, object]:
    return {
        "n_layer": file.required("gpt2.block_count"),
        "n_embd": file.required("gpt2.embedding_length"),
        "n_head": file.required("gpt2.attention.head_count"),
        "n_inner": file.required("gpt2.feed_forward_length"),
        "n_positions": file.required("gpt2.context_length"),
        "vocab_size": file.shape("token_embd.weight")[0],
        "layer_norm_epsilon": file.required("gpt2.attention.layer_norm_epsilon"),
    }


class GgufWeights:
    """A tensor source over a GGUF file; each tensor is dequantized when it is asked for."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        """Map names only."""
        self._file, self._spec = file, spec
        self._gguf_by_name = {
            hf: name for name in file.tensor_names if (hf := _hf_name(name, spec.family))
        }

    @property
    def names(self) -> AbstractSet[str]:
        """Return the Hugging Face names of all tensors."""
        return self._gguf_by_name.keys()

    def get(self, name: str) -> Tensor:
        """Return one tensor, fp32, laid out as Hugging Face does."""
        values = self._file.tensor(self._gguf_by_name[name])
        spec = self._spec
        if spec.family is Family.LLAMA and ".self_attn.q_proj." in name:
            values = halves_from_pairs(values, spec.num_heads)
        elif spec.family is Family.LLAMA and ".self_attn.k_proj." in name:
            values = halves_from_pairs(values, spec.num_kv_heads)
        elif spec.family is Family.GPT2 and ".h." in name and values.ndim == 2:
            values = values.T  # Conv1D keeps [in, out]
        return torch.from_numpy(np.ascontiguousarray(values))


def halves_from_pairs(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Return rows (0, 1), (2, 3)... of each head as all the first of the pairs, then all second."""
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _hf_name(name: str, family: Family) -> str | None:
    """Return the Hugging Face name of a GGUF tensor; None for one that is not a weight."""
    is_gpt2 = family is Family.GPT2
    top, layers = (_GPT2_TOP, _GPT2_LAYER) if is_gpt2 else (_ROTARY_TOP, _ROTARY_LAYER)
    if name in top:
        return top[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in layers:
        return None
    prefix = "transformer.h" if is_gpt2 else "model.layers"
    return f"{prefix}.{parts[1]}.{layers[parts[2]]}.{parts[3]}"
