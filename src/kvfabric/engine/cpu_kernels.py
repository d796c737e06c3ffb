"""One decode step of a decoder with RMSNorm and gated SiLU, compiled for CPUs with numba.

Every request of the batch has one token. Weights and the KV cache are bf16 (as ``uint16``) or fp32;
everything between them is fp32. One pass reads each weight and each cached K and V once, straight
from where it lies: no gathered copy, no repeated head, no widened matrix. Threads split rows of a
matrix, then requests and KV heads; a step is ``num_layers`` calls.

Speed rests on three things. Four rows of a matrix that lie far apart are read together: 12 against
5 to 8 GB/s for one row or four neighbours on an AVX2 core. They are widened once for all requests.
No array is cut out of another in a loop: each cut counts references, which costs more than a head's
dot product.

Numba notices changes of this file only, so that functions that call each other stand here together.
"""
# ruff: noqa: PLR0917 — compiled functions take their arrays one by one

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, overload

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sums in any order, so that they vectorize; no infinities are met: lengths are at least 1.
_FAST: Any = {"cache": True, "error_model": "numpy", "fastmath": True, "nogil": True}
_INNER: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
ZERO, ONE = np.float32(0), np.float32(1)


def _kernel(function: _Function) -> _Function:
    made: _Function = njit(parallel=True, **_FAST)(function)
    return made


def _inner(function: _Function) -> _Function:
    made: _Function = njit(**_FAST, **_INNER)(function)
    return made


# ---- numbers -----------------------------------------------------------------------------------


def _float_code(_typing: Any, bits: Any) -> Any:  # noqa: ARG001
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), code


def _bits_code(_typing: Any, value: Any) -> Any:  # noqa: ARG001
    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), code


_float_of: Any = intrinsic(_float_code)  # the fp32 number that 32 bits are
_bits_of: Any = intrinsic(_bits_code)


def _widened(value: Any) -> Any:
    """Return a stored value as fp32; bf16 is the upper half of an fp32."""
    raise NotImplementedError(value)


@overload(_widened)
def _widened_code(value: Any) -> Any:
    if value == types.uint16:

        def from_bf16(value: Any) -> Any:
            return _float_of(np.uint32(np.uint32(value) << np.uint32(16)))

        return from_bf16

    def as_it_is(value: Any) -> Any:
        return value

    return as_it_is


def _narrowed(like: Any, value: Any) -> Any:
    """Return an fp32 value as what is stored there; bf16 rounds to the nearest, ties to even."""
    raise NotImplementedError(like, value)


@overload(_narrowed)
def _narrowed_code(like: Any, value: Any) -> Any:  # noqa: ARG001
    if like == types.uint16:

        def to_bf16(like: Any, value: Any) -> Any:  # noqa: ARG001
            bits = _bits_of(np.float32(value))
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return to_bf16

    def as_it_is(like: Any, value: Any) -> Any:  # noqa: ARG001
        return value

    return as_it_is


@_inner
def _exp(x: Any) -> Any:
    """Return e ** x to 2 units in the last place, in a form that vectorizes (Cephes ``expf``)."""
    x = max(np.float32(-87), min(np.float32(88), x))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = _float_of(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))
    return (p * r * r + r + ONE) * power


# ---- matrices ----------------------------------------------------------------------------------


@_inner
def _four_dots(x: Any, w: Any, a: Any, b: Any, c: Any, d: Any, wide: Any, dots: Any) -> None:
    """Set ``dots[k, request]`` to the products of ``x`` with rows a, b, c, d of ``w``."""
    num_rows, n = x.shape
    if num_rows == 1:
        p0, p1, p2, p3 = ZERO, ZERO, ZERO, ZERO
        for i in range(n):
            p0 += _widened(w[a, i]) * x[0, i]
            p1 += _widened(w[b, i]) * x[0, i]
            p2 += _widened(w[c, i]) * x[0, i]
            p3 += _widened(w[d, i]) * x[0, i]
        dots[0, 0], dots[1, 0], dots[2, 0], dots[3, 0] = p0, p1, p2, p3
        return
    for i in range(n):
        wide[0, i] = _widened(w[a, i])
        wide[1, i] = _widened(w[b, i])
        wide[2, i] = _widened(w[c, i])
        wide[3, i] = _widened(w[d, i])
    for r in range(0, num_rows - 1, 2):
        p0, p1, p2, p3 = ZERO, ZERO, ZERO, ZERO
        q0, q1, q2, q3 = ZERO, ZERO, ZERO, ZERO
        for i in range(n):
            u, v = x[r, i], x[r + 1, i]
            p0 += wide[0, i] * u
            p1 += wide[1, i] * u
            p2 += wide[2, i] * u
            p3 += wide[3, i] * u
            q0 += wide[0, i] * v
            q1 += wide[1, i] * v
            q2 += wide[2, i] * v
            q3 += wide[3, i] * v
        dots[0, r], dots[1, r], dots[2, r], dots[3, r] = p0, p1, p2, p3
        dots[0, r + 1], dots[1, r + 1], dots[2, r + 1], dots[3, r + 1] = q0, q1, q2, q3
    if num_rows % 2:
        r = num_rows - 1
        p0, p1, p2, p3 = ZERO, ZERO, ZERO, ZERO
        for i in range(n):
            p0 += wide[0, i] * x[r, i]
            p1 += wide[1, i] * x[r, i]
            p2 += wide[2, i] * x[r, i]
            p3 += wide[3, i] * x[r, i]
        dots[0, r], dots[1, r], dots[2, r], dots[3, r] = p0, p1, p2, p3


@_inner
def _project(
    x: Any, w: Any, bias: Any, out: Any, adds: Any, lo: Any, hi: Any, wide: Any, dots: Any
) -> None:
    """Set ``out[:, lo:hi]`` to ``x @ w[lo:hi].T + bias``, or add to it."""
    apart = (hi - lo + 3) // 4
    for first in range(lo, lo + apart):
        b = min(first + apart, hi - 1)
        c = min(first + 2 * apart, hi - 1)
        d = min(first + 3 * apart, hi - 1)
        _four_dots(x, w, first, b, c, d, wide, dots)
        for k in range(4):
            o = first + k * apart
            if o < hi:
                extra = bias[o] if len(bias) else ZERO
                if adds:
                    for r in range(x.shape[0]):
                        out[r, o] += dots[k, r] + extra
                else:
                    for r in range(x.shape[0]):
                        out[r, o] = dots[k, r] + extra


@_inner
def _project_gated(
    x: Any, w: Any, bias: Any, out: Any, lo: Any, hi: Any, wide: Any, dots: Any
) -> None:
    """Set ``out[:, lo:hi]`` to ``silu(gate) * up``; the rows of ``up`` follow those of the gate."""
    inner = out.shape[1]
    apart = (hi - lo + 1) // 2
    for first in range(lo, lo + apart):
        second = min(first + apart, hi - 1)
        _four_dots(x, w, first, inner + first, second, inner + second, wide, dots)
        for k in range(2):
            o = first + k * apart
            if o < hi:
                gate_bias = bias[o] if len(bias) else ZERO
                up_bias = bias[inner + o] if len(bias) else ZERO
                for r in range(x.shape[0]):
                    gate = dots[2 * k, r] + gate_bias
                    out[r, o] = gate / (ONE + _exp(-gate)) * (dots[2 * k + 1, r] + up_bias)


@_inner
def _rms_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    n = x.shape[1]
    for r in range(x.shape[0]):
        square = ZERO
        for i in range(n):
            square += x[r, i] * x[r, i]
        scale = ONE / np.sqrt(square / np.float32(n) + eps)
        for i in range(n):
            out[r, i] = x[r, i] * scale * weight[i]


# ---- attention ---------------------------------------------------------------------------------


@_inner
def _turned(
    qkv: Any, r: Any, start: Any, weight: Any, eps: Any, cosines: Any, sines: Any, scale: Any,
    out: Any, row: Any,
) -> None:  # fmt: skip
    """Set ``out[row]`` to one head, normed if there is a weight, rotated, and scaled."""
    size = out.shape[1]
    half = size // 2
    if len(weight):
        square = ZERO
        for i in range(size):
            square += qkv[r, start + i] * qkv[r, start + i]
        norm = ONE / np.sqrt(square / np.float32(size) + eps)
        for i in range(size):
            qkv[r, start + i] *= norm * weight[i]
    for i in range(half):
        a, b = qkv[r, start + i], qkv[r, start + half + i]
        out[row, i] = (a * cosines[r, i] - b * sines[r, i]) * scale
        out[row, half + i] = (b * cosines[r, i] + a * sines[r, i]) * scale


@_inner
def _load_tile(pool: Any, block: Any, first: Any, span: Any, count: Any, tile: Any) -> None:
    """Widen ``count`` tokens of a block, of ``span`` KV heads from ``first`` on."""
    for j in range(count):
        for g in range(span):
            for i in range(tile.shape[2]):
                tile[g, j, i] = _widened(pool[block, j, first + g, i])


@_inner
def _scores(q: Any, h: Any, tile: Any, g: Any, start: Any, count: Any, scores: Any) -> None:
    """Set the scores of one head with the tokens of a tile."""
    size = q.shape[1]
    whole = count - count % 4
    for j in range(0, whole, 4):
        s0, s1, s2, s3 = ZERO, ZERO, ZERO, ZERO
        for i in range(size):
            s0 += q[h, i] * tile[g, j, i]
            s1 += q[h, i] * tile[g, j + 1, i]
            s2 += q[h, i] * tile[g, j + 2, i]
            s3 += q[h, i] * tile[g, j + 3, i]
        at = start + j
        scores[h, at], scores[h, at + 1], scores[h, at + 2], scores[h, at + 3] = s0, s1, s2, s3
    for j in range(whole, count):
        s0 = ZERO
        for i in range(size):
            s0 += q[h, i] * tile[g, j, i]
        scores[h, start + j] = s0


@_inner
def _softmax(scores: Any, h: Any, length: Any) -> None:
    top = scores[h, 0]
    for j in range(length):
        top = max(top, scores[h, j])
    total = ZERO
    for j in range(length):
        weight = _exp(scores[h, j] - top)
        scores[h, j] = weight
        total += weight
    for j in range(length):
        scores[h, j] /= total


@_inner
def _add_values(out: Any, h: Any, tile: Any, g: Any, start: Any, count: Any, scores: Any) -> None:
    """Add the weighted values of the tokens of a tile to one head's output."""
    size = out.shape[1]
    whole = count - count % 4
    for j in range(0, whole, 4):
        at = start + j
        s0, s1, s2, s3 = scores[h, at], scores[h, at + 1], scores[h, at + 2], scores[h, at + 3]
        for i in range(size):
            out[h, i] += (
                s0 * tile[g, j, i]
                + s1 * tile[g, j + 1, i]
                + s2 * tile[g, j + 2, i]
                + s3 * tile[g, j + 3, i]
            )
    for j in range(whole, count):
        s0 = scores[h, start + j]
        for i in range(size):
            out[h, i] += s0 * tile[g, j, i]


@_inner
def _attend(
    q: Any, k_pool: Any, v_pool: Any, table: Any, r: Any, first: Any, span: Any, length: Any,
    scores: Any, tile: Any,
) -> None:  # fmt: skip
    """Replace the queries of ``span`` KV heads from ``first`` on by their outputs."""
    size = k_pool.shape[1]
    group = q.shape[0] // k_pool.shape[2]
    num_heads = span * group
    for index in range((length + size - 1) // size):
        start = index * size
        count = min(size, length - start)
        _load_tile(k_pool, table[r, index], first, span, count, tile)
        for h in range(num_heads):
            _scores(q, h, tile, h // group, start, count, scores)
    for h in range(num_heads):
        _softmax(scores, h, length)
        for i in range(q.shape[1]):
            q[h, i] = ZERO
    for index in range((length + size - 1) // size):
        start = index * size
        count = min(size, length - start)
        _load_tile(v_pool, table[r, index], first, span, count, tile)
        for h in range(num_heads):
            _add_values(q, h, tile, h // group, start, count, scores)


@_inner
def _attention(
    qkv: Any, q_norm: Any, k_norm: Any, eps: Any, cosines: Any, sines: Any, k_pool: Any,
    v_pool: Any, table: Any, lengths: Any, mixed: Any, thread: Any, num_threads: Any, scores: Any,
    tile: Any, q: Any,
) -> None:  # fmt: skip
    """Store K and V of this thread's share of the batch, and attend.

    With few requests a share is a KV head of a request; with many it is a whole request, whose
    tokens are then read as they lie.
    """
    num_rows, num_kv, size = qkv.shape[0], k_pool.shape[2], k_pool.shape[3]
    num_heads = mixed.shape[1] // size
    group = num_heads // num_kv
    scale = ONE / np.sqrt(np.float32(size))
    span = num_kv if num_rows >= 4 * num_threads else 1
    parts = num_kv // span
    for task in range(thread, num_rows * parts, num_threads):
        r, first = task // parts, task % parts * span
        length = lengths[r]
        block, at = table[r, (length - 1) // k_pool.shape[1]], (length - 1) % k_pool.shape[1]
        for g in range(first, first + span):
            k_start, v_start = (num_heads + g) * size, (num_heads + num_kv + g) * size
            _turned(qkv, r, k_start, k_norm, eps, cosines, sines, ONE, q, 0)
            for i in range(size):
                k_pool[block, at, g, i] = _narrowed(k_pool[block, at, g, i], q[0, i])
                v_pool[block, at, g, i] = _narrowed(v_pool[block, at, g, i], qkv[r, v_start + i])
        for h in range(span * group):
            start = (first * group + h) * size
            _turned(qkv, r, start, q_norm, eps, cosines, sines, scale, q, h)
        _attend(q, k_pool, v_pool, table, r, first, span, length, scores, tile)
        for h in range(span * group):
            start = (first * group + h) * size
            for i in range(size):
                mixed[r, start + i] = q[h, i]


# ---- what Python calls -------------------------------------------------------------------------


@_kernel
def decode_layer(
    x: Any, eps: Any, weights: Any, cosines: Any, sines: Any, k_pool: Any, v_pool: Any, table: Any,
    lengths: Any, scratch: Any,
) -> None:  # fmt: skip
    """Apply one layer to the batch: ``x`` is read and written.

    Args:
        x: ``[requests, hidden]``, fp32: the residual stream.
        eps: of the norms, fp32.
        weights: attention norm, qkv, its bias, Q norm, K norm, out, its bias, MLP norm, gate and
            up, their bias, down, its bias. Norms and biases are fp32; empty where there is none.
        cosines: ``[requests, head_dim / 2]`` of the positions; ``sines`` alike.
        sines: of the same angles.
        k_pool: ``[blocks, block_size, kv_heads, head_dim]``; the token's K is stored there.
        v_pool: alike.
        table: ``[requests, blocks of the longest]``, block ids.
        lengths: ``[requests]``, tokens with this one.
        scratch: see ``Scratch.arrays``.
    """
    n1, qkv_w, qkv_b, q_norm, k_norm, out_w, out_b, n2, up_w, up_b, down_w, down_b = weights
    normed, qkv, mixed, inner, scores, tile, q, wide, dots = scratch
    threads = wide.shape[0]
    _rms_norm(x, n1, eps, normed)
    for t in prange(threads):
        n = qkv_w.shape[0]
        lo, hi = n * t // threads, n * (t + 1) // threads
        _project(normed, qkv_w, qkv_b, qkv, False, lo, hi, wide[t], dots[t])
    for t in prange(threads):
        _attention(
            qkv, q_norm, k_norm, eps, cosines, sines, k_pool, v_pool, table, lengths, mixed, t,
            threads, scores[t], tile[t], q[t],
        )  # fmt: skip
    for t in prange(threads):
        n = out_w.shape[0]
        lo, hi = n * t // threads, n * (t + 1) // threads
        _project(mixed, out_w, out_b, x, True, lo, hi, wide[t], dots[t])
    _rms_norm(x, n2, eps, normed)
    for t in prange(threads):
        n = inner.shape[1]
        lo, hi = n * t // threads, n * (t + 1) // threads
        _project_gated(normed, up_w, up_b, inner, lo, hi, wide[t], dots[t])
    for t in prange(threads):
        n = down_w.shape[0]
        lo, hi = n * t // threads, n * (t + 1) // threads
        _project(inner, down_w, down_b, x, True, lo, hi, wide[t], dots[t])


@_kernel
def head_logits(
    x: Any, eps: Any, norm: Any, head: Any, bias: Any, normed: Any, wide: Any, dots: Any, out: Any
) -> None:
    """Set ``out`` ``[requests, vocab]`` to the logits of ``x``; ``bias`` is empty."""
    threads = wide.shape[0]
    _rms_norm(x, norm, eps, normed)
    for t in prange(threads):
        n = head.shape[0]
        lo, hi = n * t // threads, n * (t + 1) // threads
        _project(normed, head, bias, out, False, lo, hi, wide[t], dots[t])
