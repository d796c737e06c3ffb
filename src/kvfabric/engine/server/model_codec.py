"""The tokenizer and the chat template of a model, as the server wants them."""

from collections.abc import Mapping, Sequence

from kvfabric.engine.chat_template import ChatTemplate
from kvfabric.engine.tokenizer import Tokenizer


class ModelCodec:
    """A ``TextCodec`` of a real model."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Join both."""
        self._tokenizer, self._template = tokenizer, template

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens added as the model wants them."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens; special tokens have none."""
        return self._tokenizer.decode(token_ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt of a conversation, up to where the assistant begins to answer.

        Raises:
            ConfigError: the template refuses the messages.
        """
        text = self._template.render(messages, add_generation_prompt=True)
        return self._tokenizer.encode(text, add_special_tokens=False)
