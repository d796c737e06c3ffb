"""Logits equal those of ``transformers`` to 1e-3 on the same weights (fp32, CPU)."""

import warnings
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, SEED, dense_logits, tiny

from kvfabric.engine.model_spec import spec_from_config
from kvfabric.engine.random_weights import RandomWeights, tensor_shapes

torch.set_num_threads(1)
TOLERANCE = 1e-3


def reference_model(name: str) -> Any:
    """Return the model of ``transformers`` with the tiny model's weights, or skip."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    source = RandomWeights(spec_from_config(CONFIGS[name]), SEED)
    state = {tensor: source.get(tensor) for tensor in source.names}
    result = model.load_state_dict(state, strict=False)
    assert not result.unexpected_keys
    tied = {"lm_head.weight"}
    assert {key for key in result.missing_keys if "rotary" not in key} <= tied
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", list(CONFIGS))
@pytest.mark.parametrize("length", [1, 200])
def test_logits_of_every_position(name: str, length: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, not ours
        model = reference_model(name)
        ids = torch.randint(0, 131, (length,), generator=torch.Generator().manual_seed(length))
        with torch.inference_mode():
            wanted = model(ids[None]).logits[0]
    ours = dense_logits(*tiny(name), ids.tolist())
    assert wanted.std() > 0.3
    assert float((ours - wanted).abs().max()) < TOLERANCE


@pytest.mark.parametrize("name", list(CONFIGS))
def test_tensor_names_are_those_of_transformers(name: str) -> None:
    model = reference_model(name)
    theirs = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    spec = spec_from_config(CONFIGS[name])
    ours = tensor_shapes(spec)
    if spec.tied_embeddings:
        theirs.pop("lm_head.weight", None)
    assert ours == theirs
