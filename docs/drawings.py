"""Figures of the docs as SVG: curves, the tree of a model, an array on a mesh, calls along time.

The colours, as in benchmarks/chart.py, are readable on a light page and on a dark one.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.chart import STYLE
from treewright import Module

WIDTH = 580
MORE = """
    .mono { font: 13px ui-monospace, Menlo, Consolas, monospace }
    .axis { stroke: #8a949066; fill: none } .end { text-anchor: end } .middle { text-anchor: middle }
    .line { fill: none; stroke-width: 2 }
    .a { stroke: #2b9078 } .b { stroke: #cc7d20 } .c { stroke: #8a9490 }
    .ta { fill: #0f7a63 } .tb { fill: #b06a14 } .tc { fill: #66706d }
    .fa { fill: #2b9078 } .fb { fill: #cc7d20 } .fc { fill: #8a9490 } .fd { fill: #1d4d43 }
    .shard { stroke: #f7efe2; stroke-width: 2 } .on { fill: #fff }
    @media (prefers-color-scheme: dark) {
      .a { stroke: #5cc4aa } .b { stroke: #eda94a } .ta { fill: #5cc4aa } .tb { fill: #eda94a } .tc { fill: #9aa5a1 }
    }
"""


def svg(label: str, height: float, parts: Sequence[str]) -> str:
    """The SVG file of these parts, `WIDTH` wide."""
    box = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label, quote=True)}"'
    style = f"  <style>{STYLE}{MORE}  </style>"
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', style, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Text that begins at `x`, or ends or is centred there by its class."""
    return f'  <text class="{kind}" x="{x:.1f}" y="{y:.1f}" xml:space="preserve">{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A filled rectangle."""
    return f'  <rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


Curve = Sequence[tuple[float, float]]


def curves(title: str, across: str, lines: Mapping[str, Curve], below: Sequence[str] = ()) -> str:
    """Lines over one axis, each with its name at its end; `below` is text in separate lines."""
    left, right, top, bottom = 48, 128, 40, 230
    xs = [x for curve in lines.values() for x, _ in curve]
    ys = [y for curve in lines.values() for _, y in curve]
    low, high = min(0, *ys), max(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (WIDTH - left - right) * (x - min(xs)) / (max(xs) - min(xs)),
            bottom - (bottom - top) * (y - low) / (high - low),
        )

    parts = [text(8, 22, title, "title"), f'  <path class="axis" d="M{left} {top} V{bottom} H{WIDTH - right}"/>']
    parts += [text(left - 6, place(0, y)[1] + 5, f"{y:.3g}", "end") for y in (low, high)]
    parts += [text(place(x, 0)[0], bottom + 18, f"{x:.0f}", "middle") for x in (min(xs), max(xs))]
    parts += [text((left + WIDTH - right) / 2, bottom + 18, across, "middle")]
    labels: list[float] = []
    for kind, (name, curve) in zip("abc", lines.items(), strict=False):
        points = [place(*point) for point in curve]
        parts.append(f'  <path class="line {kind}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>')
        x, y = points[-1]
        y = y + 5 if all(abs(y + 5 - other) > 16 for other in labels) else max(labels) + 17
        labels.append(y)
        parts.append(text(x + 6, y, name, f"t{kind}"))
    parts += [text(8, bottom + 46 + 18 * row, line, "mono") for row, line in enumerate(below)]
    return svg(title, bottom + 30 + (18 * len(below) + 10 if below else 0), parts)


Row = tuple[int, str, str, str]  # depth, name, description, the class of its colour


def rows(name: str, value: Any, depth: int, kind: str = "ta") -> Iterator[Row]:
    """A row for each node, field and item of a tuple."""
    if isinstance(value, Module):
        yield depth, name, f"{type(value).__name__}, a node", ""
        for field in dataclasses.fields(value):
            is_buffer = field.metadata.get("treewright", {}).get("kind") == "buffer"
            colour = "tb" if field.metadata.get("static") else "tc" if is_buffer else "ta"
            yield from rows(field.name, getattr(value, field.name), depth + 1, colour)
    elif isinstance(value, tuple):
        yield depth, name, f"tuple of {len(value)}", ""
        for index, each in enumerate(value):
            yield from rows(f"[{index}]", each, depth + 1)
    else:
        what = {"ta": "child", "tb": "static", "tc": "buffer"}[kind]
        shown = str(jax.typeof(value)).replace("float32", "f32") if hasattr(value, "shape") else repr(value)
        yield depth, name, f"{shown}  {what}", kind


def tree(title: str, name: str, node: Module) -> str:
    """A model as an indented tree: nodes, children in pine, statics in amber, buffers in grey."""
    pitch, top = 24, 56
    parts, above = [text(8, 22, title, "title")], dict[int, float]()
    for index, (depth, label, what, kind) in enumerate(rows(name, node, 0)):
        x, y = 20 + 30 * depth, top + pitch * index
        if depth:
            parts.append(f'  <path class="axis" d="M{x - 22} {above[depth - 1] + 6} V{y - 5} h16"/>')
        above[depth] = y
        parts += [text(x, y, label, f"mono {kind}"), text(250, y, what, f"mono {kind}")]
    return svg(title, top + pitch * len(list(rows(name, node, 0))) - 8, parts)


def mesh(title: str, shape: tuple[int, int], specs: Sequence[PartitionSpec], on: Mesh) -> str:
    """One array under several specs, side by side; each part names the devices that hold it."""
    gap, top = 24, 74
    width = (WIDTH - 16 - gap * (len(specs) - 1)) / len(specs)
    height = 120.0
    parts = [text(8, 22, title, "title")]
    kinds = ("fa", "fb", "fc", "fd")
    for panel, spec in enumerate(specs):
        left = 8 + panel * (width + gap)
        parts.append(text(left, top - 12, str(spec), "mono"))
        holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for device, index in NamedSharding(on, spec).devices_indices_map(shape).items():
            part = tuple(piece.indices(length)[:2] for piece, length in zip(index, shape, strict=True))
            holders.setdefault(part, []).append(device.id)
        for number, (((first, last), (start, stop)), devices) in enumerate(sorted(holders.items())):
            x, y = left + width * start / shape[1], top + height * first / shape[0]
            across, down = width * (stop - start) / shape[1], height * (last - first) / shape[0]
            named = ", ".join(map(str, sorted(devices)))
            parts += [
                rectangle(x, y, across, down, f"shard {kinds[number]}"),
                text(x + across / 2, y + down / 2 + 5, named, "middle on title"),
            ]
        part_shape = NamedSharding(on, spec).shard_shape(shape)
        parts.append(text(left, top + height + 20, f"f32{list(part_shape)} on each".replace(" ", "", 1)))
    return svg(title, top + height + 34, parts)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a jitted function: its start and end, in seconds, and the cause of its trace, if any."""

    start: float
    end: float
    traced: str | None


def timeline(title: str, calls: Sequence[Call]) -> str:
    """Calls along time: those that compiled in amber, with the cause, the others in pine."""
    left, top, thick = 8, 62, 22
    scale = (WIDTH - 2 * left) / calls[-1].end
    traced = [call for call in calls if call.traced]
    axis = top + 26 * len(traced) + thick
    parts = [text(left, 22, title, "title")]
    for row, call in enumerate(reversed(traced)):  # so that no line crosses a label
        x, y = left + call.start * scale, top + 26 * row
        right = x > WIDTH / 2
        parts += [
            text(x - 6 if right else x + 6, y - 6, call.traced or "", "mono tb" + (" end" if right else "")),
            f'  <path class="axis" d="M{x:.1f} {y - 18} V{axis}"/>',
        ]
    for call in calls:
        wide = max((call.end - call.start) * scale, 1.5)
        parts.append(rectangle(left + call.start * scale, axis - thick, wide, thick, "fb" if call.traced else "fa"))
    parts += [
        text(left, axis + 20, "0"),
        text(WIDTH - left, axis + 20, f"{1000 * calls[-1].end:.0f} ms", "end"),
        text(WIDTH / 2, axis + 20, f"{len(calls)} calls; amber: traced and compiled, pine: cached", "middle"),
    ]
    return svg(title, axis + 32, parts)
