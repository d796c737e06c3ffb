"""Text to token ids and back, with the ``tokenizers`` library; read from a ``tokenizer.json``."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers

from kvfabric.engine.detokenizer import Detokenizer
from kvfabric.errors import ConfigError


class Tokenizer:
    """Encodes prompts and decodes outputs of one model."""

    def __init__(self, rust: RustTokenizer) -> None:
        """Wrap a tokenizer of the library."""
        self._rust = rust

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, added ones included."""
        return int(self._rust.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written in it are recognized.

        A text that a chat template made has its special tokens already.
        """
        return list(self._rust.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones; unfinished characters as U+FFFD."""
        return str(self._rust.decode(list(token_ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its text, None if there is none."""
        token_id: int | None = self._rust.token_to_id(token)
        return token_id

    def token(self, token_id: int) -> str | None:
        """Return a token's text as the vocabulary spells it."""
        token: str | None = self._rust.id_to_token(token_id)
        return token

    def detokenizer(self) -> Detokenizer:
        """Return a new stream of text from tokens."""
        return Detokenizer(self.decode)


def tokenizer_from_json(path: Path) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``.

    Raises:
        ConfigError: it is missing or not such a file.
    """
    if not path.exists():
        raise ConfigError("no tokenizer.json is there", where=str(path.parent))
    try:
        return Tokenizer(RustTokenizer.from_file(str(path)))
    except Exception as error:  # noqa: BLE001, the library raises nothing narrower
        raise ConfigError(f"not a tokenizer: {error}", where=str(path)) from None


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of the 256 bytes, for models with random weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    rust = RustTokenizer(models.BPE(vocab=vocabulary, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    return Tokenizer(rust)
