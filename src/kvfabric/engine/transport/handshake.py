"""Who may exchange blocks: both sides greet first, compare, and refuse with the same reason.

A greeting is a magic word, the protocol version, a length of at most 4 KiB, and JSON. What else it
says than what is compared is for those who know it.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.transport.connection import Connection
from kvfabric.engine.transport.frames import PROTOCOL_VERSION, ProtocolError, printable

MAX_GREETING_BYTES = 4096
_PREFIX = struct.Struct("<4sHH")
_MAGIC = b"kvHI"
_WORDS = {
    "model": "model",
    "cluster": "cluster",
    "wire_order": "wire order",
    "num_layers": "layers",
    "block_size": "block size",
    "num_kv_heads": "KV heads",
    "head_dim": "head size",
    "kv_dtype": "KV dtype",
}


class HandshakeError(Exception):
    """Two workers do not fit together; the text says in what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What two workers must have in common to exchange KV blocks.

    Attributes:
        model: digest of the weights, or a name.
        layout: the KV cache in numbers.
        cluster: tells clusters on one host apart; their transfer ids mean different things.
        wire_order: how a piece lies in memory on the wire.
    """

    model: str
    layout: KvLayout
    cluster: str = ""
    wire_order: str = "layer, k/v, block, token, head, dim"

    def fields(self) -> dict[str, str | int]:
        """Return what is compared, in the order in which a difference is looked for."""
        flat: dict[str, str | int] = {
            "model": self.model,
            "cluster": self.cluster,
            "wire_order": self.wire_order,
        }
        return flat | asdict(self.layout)

    @property
    def digest(self) -> int:
        """Return 64 bits that stand for all fields in the header of every frame."""
        text = json.dumps(self.fields(), sort_keys=True).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def greeting(
    identity: Identity, version: int = PROTOCOL_VERSION, says: Mapping[str, int] | None = None
) -> bytes:
    """Return what a side sends first; ``says`` stands beside the identity."""
    body = json.dumps(identity.fields() | dict(says or {})).encode()
    assert len(body) <= MAX_GREETING_BYTES, "names of models and clusters are short"
    return _PREFIX.pack(_MAGIC, version, len(body)) + body


def greet(
    connection: Connection, identity: Identity, deadline_ns: int, says: Mapping[str, int]
) -> dict[str, object]:
    """Send a greeting, wait for the peer's, compare them, and return what the peer says.

    Raises:
        HandshakeError: the peers do not fit together.
        ProtocolError: what the peer sent is no greeting.
        ConnectionEndedError: it did not greet in time.
    """
    connection.send_all(greeting(identity, says=says), deadline_ns)
    prefix = connection.receive_exactly(_PREFIX.size, deadline_ns)
    magic, version, size = _PREFIX.unpack(prefix)
    if magic != _MAGIC or size > MAX_GREETING_BYTES:
        raise ProtocolError("the peer sent something else than a greeting")
    body = connection.receive_exactly(size, deadline_ns)
    if version != PROTOCOL_VERSION:
        low, high = sorted((version, PROTOCOL_VERSION))
        raise HandshakeError(f"protocol versions {low} and {high} do not fit together")
    theirs = _read(body)
    compare(identity.fields(), theirs)
    return theirs


def _read(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ProtocolError("the peer's greeting is not JSON")
    return fields


def compare(ours: Mapping[str, object], theirs: Mapping[str, object]) -> None:
    """Raise HandshakeError with the first difference, in the same words on both sides."""
    for key, word in _WORDS.items():
        mine, other = ours[key], theirs.get(key)
        if mine != other:
            texts = sorted(printable(str(value)[:80]) for value in (mine, other))
            raise HandshakeError(f"different {word}: {texts[0]} and {texts[1]}")
