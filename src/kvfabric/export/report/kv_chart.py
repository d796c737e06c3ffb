"""How the KV cache grows with the context, against what the GPUs hold."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvfabric.export.report.markup import Markup, el
from kvfabric.export.report.parts import Column, chart, data_table, figure, more, scroll
from kvfabric.export.report.scales import Frame, Scale, polyline, x_axis, y_axis
from kvfabric.export.report.words import plural
from kvfabric.kvcache.geometry import request_bytes
from kvfabric.plan.compare import Comparison
from kvfabric.plan.sizing import Sizing
from kvfabric.units import format_bytes

_WIDTH, _HEIGHT, _RIGHT = 720.0, 420.0, 120.0
_NUM_POINTS = 33
_LABEL_STEP = 16.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """A limit that the curves run into."""

    name: str
    num_bytes: int


def kv_figure(comparison: Comparison) -> Markup | None:
    """Return bytes against context for one to all users, or None where no GPU is named."""
    sizing = comparison.fleet.decode.sizing or comparison.fleet.sizing
    if sizing is None:
        return None
    limits = capacities(comparison, sizing)
    counts = user_counts(sizing.request.num_users)
    contexts = _contexts(sizing)
    lowest = _kv_bytes(sizing, contexts[0], 1)
    highest = max(_kv_bytes(sizing, contexts[-1], counts[-1]), *(c.num_bytes for c in limits))
    left, right = 84.0, _WIDTH - _RIGHT
    frame = Frame(
        Scale(contexts[0], contexts[-1], left, right, is_log=True),
        Scale(lowest * 0.8, highest * 1.6, _HEIGHT - 52, 36, is_log=True),
    )
    drawing = chart(
        "kv",
        "KV cache against context length",
        _description(sizing, limits),
        (_WIDTH, _HEIGHT),
        y_axis(
            frame, "KV cache, all users (logarithmic)", lambda value: format_bytes(round(value))
        ),
        x_axis(frame, "Tokens of context per user (logarithmic)", lambda value: f"{value:,.0f}"),
        *_limit_lines(limits, frame),
        *_curves(sizing, counts, contexts, frame),
        _asked(sizing, frame),
    )
    equation = "; ".join(sizing.need.equations)
    table = more("Numbers", _table(sizing, counts, contexts))
    return figure(f"{sizing.request.model_name}: {equation}.", scroll(drawing), table)


def capacities(comparison: Comparison, sizing: Sizing) -> list[Capacity]:
    """Return what holds KV cache: one GPU's memory, one worker's pool, the pools of the fleet."""
    workers = comparison.request.workers
    count, kind = workers.num_decode or workers.num_prefill, "decode worker"
    if not workers.num_decode:
        kind = "worker"
    pool = sizing.memory.kv_bytes_per_worker
    found = [Capacity("memory of one GPU", sizing.memory.visible_bytes_per_gpu)]
    if pool > 0:
        found.append(Capacity(f"KV pool of one {kind}", pool))
        if count > 1:
            found.append(Capacity(f"KV pools of {plural(count, kind)}", count * pool))
    return found


def user_counts(num_users: int) -> list[int]:
    """Return powers of ten below the number of users, and that number.

    >>> user_counts(250)
    [1, 10, 100, 250]
    """
    counts = [10**power for power in range(7) if 10**power < num_users]
    return [*counts, num_users]


def _contexts(sizing: Sizing) -> list[int]:
    asked = sizing.request.num_context_tokens
    allowed = sizing.request.geometry.max_context_tokens or 4 * asked
    low, high = min(1_000, max(1, asked // 4)), max(2 * asked, min(allowed, 16 * asked))
    steps = _NUM_POINTS - 1
    found = {round(low * (high / low) ** (step / steps)) for step in range(_NUM_POINTS)}
    return sorted(found)


def _kv_bytes(sizing: Sizing, num_tokens: int, num_users: int) -> int:
    request = sizing.request
    per_user = request_bytes(request.geometry, num_tokens, dtype_bytes=request.kv_element_bytes)
    return max(1, num_users * per_user)


def _curves(
    sizing: Sizing, counts: list[int], contexts: list[int], frame: Frame
) -> Iterator[Markup]:
    lowest_label = frame.y.start + _LABEL_STEP
    for count in counts:
        points = [frame.point(tokens, _kv_bytes(sizing, tokens, count)) for tokens in contexts]
        css = "line c1" if count == counts[-1] else "line faint"
        yield el("path", class_=css, d=polyline(points))
        x, y = points[-1]
        lowest_label = min(y + 4.5, lowest_label - _LABEL_STEP)
        yield el("text", plural(count, "user"), class_="mark", x=x + 8, y=lowest_label)


def _limit_lines(limits: list[Capacity], frame: Frame) -> Iterator[Markup]:
    above = -_LABEL_STEP
    for limit in sorted(limits, key=lambda one: -one.num_bytes):
        y = frame.y.at(limit.num_bytes)
        at = y - 6 if y - above > _LABEL_STEP + 4 else y + 15  # below its line if it is crowded
        above = y
        yield el("line", class_="limit", x1=frame.x.start, x2=frame.x.end, y1=y, y2=y)
        text = f"{limit.name}, {format_bytes(limit.num_bytes)}"
        yield el("text", text, class_="mark", x=frame.x.start + 6, y=at)


def _asked(sizing: Sizing, frame: Frame) -> Markup:
    request, total = sizing.request, sizing.need.kv_bytes_total
    x, y = frame.point(request.num_context_tokens, total)
    words = f"asked: {request.num_context_tokens:,} tokens, {format_bytes(total)}"
    hint = el("title", words)
    dot = el("circle", hint, class_="dot c1", cx=x, cy=y, r=5.5)
    return el("g", dot, el("text", words, class_="mark", x=x + 8, y=y + 20))


def _description(sizing: Sizing, limits: list[Capacity]) -> str:
    request = sizing.request
    held = "; ".join(f"{limit.name}: {format_bytes(limit.num_bytes)}" for limit in limits)
    return (
        f"{request.num_users:,} users with {request.num_context_tokens:,} tokens each need"
        f" {format_bytes(sizing.need.kv_bytes_total)}. {held}."
    )


def _table(sizing: Sizing, counts: list[int], contexts: list[int]) -> Markup:
    columns = [
        Column("Tokens of context"),
        *(Column(plural(count, "user"), "GB") for count in counts),
    ]
    rows = [
        [f"{tokens:,}", *(f"{_kv_bytes(sizing, tokens, n) / 1e9:,.3f}" for n in counts)]
        for tokens in contexts[:: (_NUM_POINTS - 1) // 8]
    ]
    return data_table("KV cache by context and users", columns, rows)
