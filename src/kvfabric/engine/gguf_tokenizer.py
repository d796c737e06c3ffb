"""The byte-pair tokenizer whose vocabulary and merges a GGUF file holds."""

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from kvfabric.engine.gguf_file import GgufFile
from kvfabric.engine.tokenizer import Tokenizer
from kvfabric.errors import UnsupportedError

# How a text is cut before byte pairs are merged, by ``tokenizer.ggml.pre``.
# Source: the tokenizer.json of each model; llama.cpp names them in llama-vocab.cpp.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLIT_BY_PRE = {"llama-bpe": _LLAMA3, "qwen2": _QWEN2}
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Return the byte-pair tokenizer whose vocabulary a GGUF file holds.

    Raises:
        UnsupportedError: another kind of tokenizer.
    """
    kind = file.required("tokenizer.ggml.model")
    if kind != "gpt2":
        hint = "The engine reads byte-pair vocabularies ('gpt2')"
        raise UnsupportedError(f"tokenizer.ggml.model is {kind!r}", where=str(file.path), hint=hint)
    tokens: list[str] = file.required("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in file.required("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    rust = RustTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    pre = file.value("tokenizer.ggml.pre", "gpt-2")
    rust.pre_tokenizer = _pre_tokenizer(pre, str(file.path))
    rust.decoder = decoders.ByteLevel()
    types: list[int] = file.value("tokenizer.ggml.token_type", [])
    marked = [(tokens[index], kind) for index, kind in enumerate(types)]
    rust.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, t in marked if t == _CONTROL]
    )
    rust.add_tokens(
        [AddedToken(token, normalized=False) for token, t in marked if t == _USER_DEFINED]
    )
    return Tokenizer(rust)


def _pre_tokenizer(pre: str, where: str) -> pre_tokenizers.PreTokenizer:
    if pre in {"gpt-2", "default"}:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre not in _SPLIT_BY_PRE:
        known = ", ".join(("gpt-2", "smollm", *_SPLIT_BY_PRE))
        hint = f"The engine reads {known}"
        raise UnsupportedError(f"tokenizer.ggml.pre is {pre!r}", where=where, hint=hint)
    split = pre_tokenizers.Split(Regex(_SPLIT_BY_PRE[pre]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte_level])
