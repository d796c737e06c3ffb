"""The KV equation of a model in words, with its numbers: one line per kind of layer."""

from kvfabric.kvcache.geometry import (
    TOKEN_KINDS,
    KVGeometry,
    LayerGroup,
    LayerKind,
    LayerLayout,
    kv_bytes_per_token,
    layer_token_bytes,
)

_KIND_WORD = {LayerKind.FULL: "", LayerKind.SLIDING: "sliding ", LayerKind.CHUNKED: "chunked "}


def kv_equations(geometry: KVGeometry, *, dtype_bytes: int) -> tuple[str, ...]:
    """Return what is multiplied to the bytes that each kind of layer keeps, and their sum."""
    lines = [line for group in geometry.groups for line in _group_lines(group, dtype_bytes)]
    if sum(group.layout.kind in TOKEN_KINDS for group in geometry.groups) > 1:
        total = kv_bytes_per_token(geometry, dtype_bytes=dtype_bytes)
        lines.append(f"together {total:,} B/token")
    return tuple(lines)


def _group_lines(group: LayerGroup, dtype_bytes: int) -> list[str]:
    layout, num_layers = group.layout, len(group.layers)
    lines = []
    if layout.kind in TOKEN_KINDS:
        lines.append(_token_line(layout, num_layers, dtype_bytes))
    if layout.index_bytes:
        total = num_layers * layout.index_bytes
        lines.append(
            f"{num_layers} layers x {layout.index_bytes} bytes of index = {total:,} B/token"
        )
    if layout.state_bytes:
        lines.append(
            f"{num_layers} state layers x {layout.state_bytes:,} bytes = "
            f"{num_layers * layout.state_bytes:,} B per user, whatever the context"
        )
    return lines


def _token_line(layout: LayerLayout, num_layers: int, dtype_bytes: int) -> str:
    total = num_layers * layer_token_bytes(layout, dtype_bytes=dtype_bytes)
    layers = f"{num_layers} {_KIND_WORD[layout.kind]}layers"
    elements = "byte" if dtype_bytes == 1 else "bytes"
    limit = f", at most {layout.window_tokens:,} tokens" if layout.window_tokens else ""
    return f"{_product(layout, layers)} x {dtype_bytes} {elements} = {total:,} B/token{limit}"


def _product(layout: LayerLayout, layers: str) -> str:
    if layout.is_latent:
        return f"{layers} x {layout.key_dim} latent elements"
    heads = f"{layout.num_kv_heads} kv heads"
    if layout.key_dim == layout.value_dim:
        return f"2 x {layers} x {heads} x {layout.key_dim}"
    return f"{layers} x {heads} x ({layout.key_dim} + {layout.value_dim})"
