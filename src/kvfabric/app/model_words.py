"""Whether two names mean models of the same sizes."""

import re

# Words in the names of models that share the sizes of their base model.
_SAME_SIZES = frozenset(
    {"meta", "instruct", "base", "chat", "it", "hf", "fp8", "bf16", "2507", "v0.1"}
)


def words_between(ours: str, theirs: str) -> frozenset[str] | None:
    """Return the words that stand in one name only, or None if they tell two sizes apart.

    >>> sorted(words_between("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"))
    ['instruct']
    """
    found = _words(ours) ^ _words(theirs)
    return None if found - _SAME_SIZES else found


def _words(name: str) -> frozenset[str]:
    """Return the parts of a model's name, without its owner."""
    return frozenset(re.split(r"[-_ ]+", name.rsplit("/", maxsplit=1)[-1].lower()))
