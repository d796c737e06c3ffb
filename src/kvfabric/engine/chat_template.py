"""A model's chat template: messages to prompt text, in jinja2's sandbox.

A template comes with the weights, from anywhere: it can neither reach Python objects nor change
what it is given, and a text longer than ``MAX_CHARACTERS`` is refused.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvfabric.errors import ConfigError

MAX_CHARACTERS = 16_000_000
_PLAIN = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)
PLAIN_TEMPLATE = _PLAIN + "{% if add_generation_prompt %}assistant: {% endif %}"


class ChatTemplate:
    """One template, and the special tokens it names."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compile a template.

        Args:
            source: jinja2 text; ``PLAIN_TEMPLATE`` for a model without one.
            special_tokens: such as ``bos_token``, by the name that templates use.

        Raises:
            ConfigError: the template is broken.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the model's chat template is broken: {error}") from None

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt of a conversation: ``role`` and ``content`` of each message.

        Raises:
            ConfigError: the template refuses the messages, such as roles in a wrong order.
        """
        try:
            text = self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"the model's chat template refuses the messages: {error}") from None
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"the chat template made {len(text)} characters of the messages")
        return text


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
