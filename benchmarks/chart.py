"""A bar chart as SVG, readable on a light and on a dark page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Kind = Literal["base", "peer", "ours"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `kind` gives its colour."""

    name: str
    value: float
    kind: Kind


WIDTH, LEFT, RIGHT, TOP, PITCH, THICK = 760, 236, 60, 64, 26, 16
# Of one contrast to white and to GitHub's dark page, since an image is not told which of the two it stands on.
STYLE = """
    text { font: 14px ui-sans-serif, system-ui, sans-serif; fill: #6e7781 }
    .title { font-weight: 600; font-size: 15px }
    .name { text-anchor: end }
    .name.ours, .value.ours { font-weight: 600; fill: #0969da }
    rect.ours { fill: #0969da } rect.peer { fill: #8c959f } rect.base { fill: #6e7781 }
    @media (prefers-color-scheme: dark) {
      text { fill: #9198a1 }
      .name.ours, .value.ours { fill: #58a6ff }
      rect.ours { fill: #58a6ff }
    }"""


def svg(title: str, note: str, bars: Sequence[Bar], *, longest: float) -> str:
    """The chart. Bars that are longer than `longest` are cut, with their value behind."""
    height = TOP + PITCH * len(bars) + 8
    scale = (WIDTH - LEFT - RIGHT) / longest
    box = f'viewBox="0 0 {WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(title)}">',
        f"  <style>{STYLE}\n  </style>",
        f'  <text class="title" x="8" y="22">{escape(title)}</text>',
        f'  <text x="8" y="44">{escape(note)}</text>',
    ]
    for index, bar in enumerate(bars):
        y = TOP + PITCH * index
        width = min(bar.value, longest) * scale
        shape = f'<rect class="{bar.kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{THICK}" rx="2"/>'
        if bar.value > longest:
            x = LEFT + width - 14
            shape += f'<path d="M{x:.0f} {y + THICK} l6 -{THICK} h5 l-6 {THICK} z" fill="#ffffff"/>'
        lines += [
            f'  <text class="name {bar.kind}" x="{LEFT - 8}" y="{y + 13}">{escape(bar.name)}</text>',
            f"  {shape}",
            f'  <text class="value {bar.kind}" x="{LEFT + width + 6:.1f}" y="{y + 13}">{bar.value:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
