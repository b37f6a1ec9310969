"""A bar chart as SVG, readable on a light and on a dark page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Literal

Kind = Literal["base", "peer", "ours"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `kind` selects its colour, and a thin line shows the range of the measured values."""

    name: str
    value: float
    kind: Kind
    spread: tuple[float, float]


# Narrow enough for a phone, which draws it at two thirds of its size.
WIDTH, LEFT, RIGHT, TOP, LINE, PITCH, THICK = 580, 236, 52, 42, 20, 26, 16
# Pine and greys, as on the site, in tones that are readable on a white page and on a dark one, because an image may
# appear on either.
STYLE = """
    text { font: 14px ui-sans-serif, system-ui, sans-serif; fill: #66706d }
    .title { font-weight: 600; font-size: 15px }
    .name { text-anchor: end }
    .name.ours, .value.ours { font-weight: 600; fill: #0f7a63 }
    .bar.ours { fill: #2b9078 } .bar.peer { fill: #8a9490 } .bar.base { fill: #cc7d20 }
    @media (prefers-color-scheme: dark) {
      text { fill: #9aa5a1 }
      .name.ours, .value.ours { fill: #5cc4aa }
      .bar.ours { fill: #5cc4aa } .bar.peer { fill: #5f6b67 } .bar.base { fill: #eda94a }
    }"""


def shapes(bar: Bar, y: int, longest: float, scale: float) -> list[str]:
    """The bar and its range as paths. A bar that is longer than `longest` ends there, behind a slanted gap."""
    value, low, high = (LEFT + min(max(0.0, number), longest) * scale for number in (bar.value, *bar.spread))
    if bar.value > longest:
        cut = f"M{LEFT} {y} H{value - 10:.1f} l-6 {THICK} H{LEFT} z M{value - 5:.1f} {y} h5 v{THICK} h-11 z"
        return [f'<path class="bar {bar.kind}" d="{cut}"/>']
    return [
        f'<path class="bar {bar.kind}" d="M{LEFT} {y} H{value:.1f} v{THICK} H{LEFT} z"/>',
        f'<path stroke="#7d8884" stroke-width="2" d="M{low:.1f} {y + THICK // 2} H{high:.1f}"/>',
    ]


def svg(title: str, note: str, bars: Sequence[Bar], *, longest: float) -> str:
    """The chart. Bars that are longer than `longest` are cut, with their value behind."""
    notes = wrap(note, 76)
    top = TOP + LINE * len(notes)
    height = top + PITCH * len(bars) + 8
    scale = (WIDTH - LEFT - RIGHT) / longest
    box = f'viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(title)}">',
        f"  <style>{STYLE}\n  </style>",
        f'  <text class="title" x="8" y="22">{escape(title)}</text>',
        *(f'  <text x="8" y="{TOP + LINE * line}">{escape(text)}</text>' for line, text in enumerate(notes)),
    ]
    for index, bar in enumerate(bars):
        y = top + PITCH * index
        end = LEFT + min(longest, max(bar.spread if bar.value <= longest else (bar.value,))) * scale
        lines += [
            f'  <text class="name {bar.kind}" x="{LEFT - 8}" y="{y + 13}">{escape(bar.name)}</text>',
            *(f"  {shape}" for shape in shapes(bar, y, longest, scale)),
            f'  <text class="value {bar.kind}" x="{end + 6:.1f}" y="{y + 13}">{bar.value:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
