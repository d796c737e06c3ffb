"""What completions and chats do alike: make room in the context, start, and answer."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfabric.engine.admission import Limits
from kvfabric.engine.executor_port import Sampling
from kvfabric.engine.server.backend import Backend
from kvfabric.engine.server.errors import context_too_long, token_outside
from kvfabric.engine.server.lifecycle import Lifecycle
from kvfabric.engine.server.metrics import ServerMetrics
from kvfabric.engine.server.openai_types import OutputOptions
from kvfabric.engine.server.outputs import RequestOutputs


@dataclass(frozen=True, slots=True)
class Service:
    """What every handler needs."""

    backend: Backend
    metrics: ServerMetrics
    lifecycle: Lifecycle

    def outputs(
        self, prompts: Sequence[Sequence[int]], options: OutputOptions, param: str
    ) -> RequestOutputs:
        """Return the outputs of prompts, not started.

        Raises:
            ApiError: if a prompt, with the output asked for, is too long, or has tokens that the
                model does not; ``param`` is its field.
        """
        model = self.backend.model
        limits = Limits(model.max_model_len, model.vocab_size)
        for prompt in prompts:
            outside = limits.token_outside(prompt)
            if outside is not None:
                raise token_outside(outside, model.vocab_size, param)
        sampling = [self._fitted(len(prompt), options, param) for prompt in prompts]
        return RequestOutputs(self.backend, self.metrics, prompts, sampling, options.num_outputs)

    def _fitted(self, num_prompt_tokens: int, options: OutputOptions, param: str) -> Sampling:
        max_model_len = self.backend.model.max_model_len
        room = max_model_len - num_prompt_tokens
        if room < (options.max_tokens or 1):
            raise context_too_long(num_prompt_tokens, options.max_tokens, max_model_len, param)
        return options.sampling._replace(max_tokens=options.max_tokens or room)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body of one answer begins with."""

    kind: str
    model: str
    prefix: str
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _created_s: int = field(default_factory=lambda: int(time.time()))

    def body(self, **rest: Any) -> dict[str, Any]:
        """Return a body."""
        return {
            "id": f"{self.prefix}-{self._id}",
            "object": self.kind,
            "created": self._created_s,
            "model": self.model,
            **rest,
        }
