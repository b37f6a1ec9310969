"""The page that treescope makes of a node, as a browser shows it: scripts put its contents together."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest
import treescope

from treewright import Module, buffer, static

if TYPE_CHECKING:
    from pathlib import Path

# treescope reads all of numpy on first use, what numpy means to remove included.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning:numpy", "ignore:The chararray class")]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# What a person sees: the lines of the page, and the words in italics.
LOOK = """<pre id="seen"></pre><script>
    setInterval(() => {
        const inside = [...document.querySelectorAll("treescope-container")].map((one) => one.shadowRoot);
        const parts = inside.flatMap((root) => [...root.querySelectorAll("*")]);
        const words = parts.filter((part) => !part.children.length && getComputedStyle(part).fontStyle === "italic");
        const italic = words.map((word) => word.textContent);
        const text = inside.flatMap((root) => [...root.children]).map((part) => part.innerText).join("");
        document.getElementById("seen").textContent = JSON.stringify({text, italic});
    }, 200);
</script>"""


class Norm(Module):
    scale: jax.Array
    mean: jax.Array = buffer()
    activation: str = static(default="relu")


class Net(Module):
    layers: tuple[Norm, ...]
    name: str = static(default="net")


def page_of_a_net() -> str:
    page: Any = treescope.render_to_html(Net((Norm(jnp.ones(2), jnp.zeros(2)),)), compressed=False)
    return str(page)


def test_the_page_marks_statics_and_buffers_and_nothing_else() -> None:
    page = html.unescape(page_of_a_net())

    assert (page.count("# static"), page.count("# buffer")) == (2, 1)
    assert page.count("font-style: italic") == 2


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_each_field_with_its_kind_and_statics_in_another_style(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><meta charset='utf-8'>{page_of_a_net()}{LOOK}", encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]

    run = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    (seen,) = re.findall(r'<pre id="seen">(.*?)</pre>', run.stdout, re.DOTALL)
    found = json.loads(html.unescape(seen))
    notes = dict(re.findall(r"^(\w+)=.*?(# \w+)?\s*$", found["text"], re.MULTILINE))
    assert notes == {"layers": "", "scale": "", "mean": "# buffer", "activation": "# static", "name": "# static"}
    assert found["italic"] == ["activation", "name"]
