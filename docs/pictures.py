"""The pictures of docs/looking.md, drawn anew: `make pictures`. Needs pillow, treescope and a Chromium."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import treescope
from PIL import Image, ImageChops

from treewright import Module, buffer, static, summary

IMAGES = Path(__file__).parent / "images"
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 14px system-ui, sans-serif; margin: 16px; {colours} }} pre {{ margin: 0; }}
table {{ border-collapse: collapse; font-size: 13px; }} td, th {{ padding: 3px 10px; }}
tbody tr:nth-child(odd) {{ background: #8882; }}
p {{ color: #888; font: 13px monospace; margin: 18px 0 6px; }}
</style><p>net</p>{node}<p>summary(net)</p>{table}"""
LIGHT, DARK = "background: #fff; color: #111", "background: #1e2129; color: #e2e4e9"
# Without a profile of its own, a Chromium that runs already would take the page; and nothing is fetched from elsewhere.
BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--window-size=900,900",
)  # fmt: skip


class Dense(Module):
    """The layer of the page."""

    kernel: jax.Array
    bias: jax.Array
    activation: str = static(default="relu")

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (outputs, inputs)) / inputs**0.5
        self.bias = jnp.zeros(outputs)


class Net(Module):
    """The model of the page."""

    layers: tuple[Dense, ...]
    scale: jax.Array
    mean: jax.Array = buffer()
    temperature: float = 2.0
    name: str = static(default="digits")


def model() -> Net:
    """The model that is shown."""
    first, second = jax.random.split(jax.random.key(0))
    return Net((Dense(64, 128, first), Dense(128, 10, second)), jnp.float32(0.5), jnp.zeros(64))


def draw_notebook(file: Path, colours: str) -> None:
    """What a notebook shows for the model, with treescope installed, and for its summary."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit(f"no Chromium is installed, which draws {file.name}")
    net = model()
    shown: Any = summary(net)
    # Not compressed: a compressed tree unpacks itself when it is seen, and the picture would show "(Loading...)".
    node = treescope.render_to_html(net, compressed=False)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE.format(node=node, table=shown._repr_html_(), colours=colours), encoding="utf-8")
        options = [f"--user-data-dir={folder}/profile", "--run-all-compositor-stages-before-draw", "--timeout=5000"]
        command = [browser, *BROWSER, *options, f"--screenshot={file}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603  our own page
    crop(file)


def crop(file: Path) -> None:
    """Cut off what is empty below the last line."""
    picture = Image.open(file).convert("RGB")
    empty = Image.new("RGB", picture.size, picture.getpixel((0, 0)))
    *_, bottom = ImageChops.difference(picture, empty).getbbox() or (0, 0, 0, picture.height)
    picture.crop((0, 0, picture.width, min(picture.height, bottom + 16))).save(file, optimize=True)


if __name__ == "__main__":
    draw_notebook(IMAGES / "notebook.png", LIGHT)
    draw_notebook(IMAGES / "notebook-dark.png", DARK)
