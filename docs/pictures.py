"""Draw the pictures of the docs, and screenshots of the site: `make pictures`. Needs a Chromium.

`python -m docs.pictures vector` draws only the SVG files, which need none.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_NUM_CPU_DEVICES"] = "4"  # before jax is imported

import jax
import jax.numpy as jnp
import treescope
from jax.sharding import PartitionSpec
from PIL import Image, ImageChops
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs import drawings
from examples.side_by_side.__main__ import program_of
from treewright import Module, buffer, explain_retraces, static, summary

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 14px system-ui, sans-serif; margin: 16px; {colours} }} pre {{ margin: 0; }}
table {{ border-collapse: collapse; font-size: 13px; }} td, th {{ padding: 3px 10px; }}
tbody tr:nth-child(odd) {{ background: #8882; }}
p {{ color: #888; font: 13px monospace; margin: 18px 0 6px; }}
</style><p>net</p>{node}<p>summary(net)</p>{table}"""
LIGHT, DARK = "background: #fff; color: #111", "background: #1e2129; color: #e2e4e9"
BROWSER = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--no-first-run",
)  # fmt: skip
FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><body style="margin: 0">
<iframe src="site/index.html" style="border: 0; width: {width}px; height: {height}px"></iframe>"""
# Rich's own template loads a font from elsewhere.
TERMINAL = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; white-space: pre }}
.{unique_id}-title {{ font: 600 16px ui-sans-serif, system-ui, sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
COLOURS = TerminalTheme(
    (23, 34, 31),
    (222, 228, 225),
    [(23, 34, 31), (226, 114, 91), (92, 196, 170), (237, 169, 74), *4 * [(154, 165, 161)]],
)
# The parts of a report that are coloured.
STYLES = {
    r"(?m)^\$.*$": "bold green",
    r"\w+ retraced": "bold red",
    r"(?m)(?<=: )[^:\n]+ -> [^\n]+$": "yellow",
    r"\w+\.py:\d+": "green",
}


class Dense(Module):
    """The layer of inspecting.md."""

    kernel: jax.Array
    bias: jax.Array
    activation: str = static(default="relu")

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs)) / inputs**0.5
        self.bias = jnp.zeros(outputs)


class Net(Module):
    """The model of inspecting.md."""

    layers: tuple[Dense, ...]
    scale: jax.Array
    mean: jax.Array = buffer()
    temperature: float = 2.0
    name: str = static(default="digits")


def model() -> Net:
    """The model in the images."""
    first, second = jax.random.split(jax.random.key(0))
    return Net((Dense(64, 128, first), Dense(128, 10, second)), jnp.float32(0.5), jnp.zeros(64))


def take_screenshot(page: str, file: Path, width: int, height: int, *options: str) -> None:
    """Save a screenshot of a page in Chromium. With an old profile, a running Chromium would open the page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit(f"no Chromium is installed, which draws {file.name}")
    with tempfile.TemporaryDirectory() as profile:
        window = (f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={file}")
        command = [browser, *BROWSER, *window, *options, page]
        subprocess.run(command, check=True, capture_output=True, timeout=120)  # noqa: S603  our own page


def draw_notebook(file: Path, colours: str) -> None:
    """Draw a notebook's output for the model, with treescope installed, and for its summary."""
    net = model()
    shown: Any = summary(net)
    # Not compressed: a compressed tree unpacks only when it is visible, and the image would show "(Loading...)".
    node = treescope.render_to_html(net, compressed=False)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(PAGE.format(node=node, table=shown._repr_html_(), colours=colours), encoding="utf-8")
        take_screenshot(page.as_uri(), file, 900, 900, "--run-all-compositor-stages-before-draw", "--timeout=5000")
    crop(file)


def crop(file: Path) -> None:
    """Crop the empty space below the last line."""
    picture = Image.open(file).convert("RGB")
    empty = Image.new("RGB", picture.size, picture.getpixel((0, 0)))
    *_, bottom = ImageChops.difference(picture, empty).getbbox() or (0, 0, 0, picture.height)
    picture.crop((0, 0, picture.width, min(picture.height, bottom + 16))).save(file, optimize=True)


def report_lines() -> Iterator[str]:
    """The report of `python -m treewright retraces` for examples/recompiles.py, up to the last retrace."""
    command = [sys.executable, "-m", "treewright", "retraces", "recompiles.py"]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT / "examples")  # noqa: S603
    yield "$ python -m treewright retraces recompiles.py"
    yield from run.stdout.splitlines()
    yield from run.stderr.partition("\nLines outside")[0].splitlines()


def draw_terminal(file: Path) -> None:
    """Draw the report as a terminal shows it."""
    text = Text("\n".join(report_lines()))
    for pattern, style in STYLES.items():
        text.highlight_regex(re.compile(pattern), style)
    width = max(map(len, text.plain.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text)
    console.save_svg(str(file), title="retraces", theme=COLOURS, code_format=TERMINAL, unique_id="terminal")


def draw_site(folder: Path) -> None:
    """Save screenshots of the site's first page on a phone, a laptop and a large screen, light and dark."""
    site = folder / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    subprocess.run(build, check=True, cwd=ROOT)  # noqa: S603
    for width, height in ((390, 4500), (1366, 2600), (1920, 2600)):
        frame = folder / f"{width}.html"  # since a window has at least 500 pixels
        frame.write_text(FRAME.format(width=width, height=height), encoding="utf-8")
        for scheme in ("dark", "light"):
            colours = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
            file = folder / f"{width}-{scheme}.png"
            take_screenshot(frame.as_uri(), file, max(width, 500), height, colours, "--virtual-time-budget=5000")
            Image.open(file).crop((0, 0, width, height)).save(file, optimize=True)


def tutorial(name: str) -> types.ModuleType:
    """The program of a tutorial's page, run."""
    module = sys.modules["page"] = types.ModuleType("page")
    code = program_of((ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, vars(module))  # noqa: S102  our own page
    return module


def draw_first_model(file: Path) -> None:
    """Draw the accuracy after each epoch, on the digits for training and on the others."""
    page = tutorial("first-model")
    state = page.fresh()
    lines: dict[str, list[tuple[float, float]]] = {"training digits": [], "unseen digits": []}
    for number in range(9):
        for name, data in zip(lines, (page.train, page.test), strict=True):
            lines[name].append((number, float(page.accuracy(state.params, *data))))
        state = page.epoch(state, number)
    file.write_text(drawings.curves("Accuracy of the first model", "epochs", lines), encoding="utf-8")


def draw_language_model(file: Path) -> None:
    """Draw the loss of each step, and samples of the model after 0, 75 and 150 steps."""
    page = tutorial("language-model")
    samples = []
    for steps in (0, 75, page.STEPS):
        model = page.new_model()
        run = page.loop(page.step, page.State.create(params=model, tx=page.tx, average=jax.tree.map(jnp.copy, model)))
        for _ in range(steps):
            run(page.numbers, jax.random.key(2))
        characters = page.written(run.state.params, page.numbers[:32], jax.random.split(jax.random.key(3), 160))
        shown = " ".join("".join(page.alphabet[number] for number in characters[32:]).split())
        samples.append(f"{steps:>3}: {shown[:62]}")
    losses = {"each step": [(number, float(loss)) for number, loss in enumerate(page.losses)]}
    title = "Loss of the language model, and what it writes after 0, 75 and 150 steps"
    file.write_text(drawings.curves(title, "steps", losses, samples), encoding="utf-8")


def draw_reinforcement_learning(file: Path) -> None:
    """Draw the mean age of a cart."""
    ages = tutorial("reinforcement-learning").ages
    line = [(number + 1, float(age)) for number, age in enumerate(ages)]
    text = drawings.curves("Mean age of 64 carts, in time steps", "updates", {"each update": line})
    file.write_text(text, encoding="utf-8")


def draw_lora(file: Path) -> None:
    """Draw the loss on the new task while the adapters are trained."""
    page = tutorial("lora")
    state = page.TrainState.create(params=page.small, tx=page.optax.adam(1e-2))
    line = []
    for number in range(201):
        if number % 5 == 0:
            line.append((number, float(page.mean_square(page.combine(state.params, page.frozen), page.x, page.target))))
        state = page.tune_step(state, page.frozen, page.x, page.target)
    text = drawings.curves("Loss on the new task", "steps", {"adapters, rank 2": line})
    file.write_text(text, encoding="utf-8")


def draw_tree(file: Path) -> None:
    """Draw the model of inspecting.md as a tree."""
    file.write_text(drawings.tree("A model is a tree of nodes, children and statics", "net", model()), encoding="utf-8")


def draw_mesh(file: Path) -> None:
    """Draw an array under three specs, on four devices."""
    mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = [PartitionSpec("fsdp", "tensor"), PartitionSpec("fsdp", None), PartitionSpec()]
    title = "f32[8,32] on a mesh of four devices, fsdp=2 and tensor=2"
    file.write_text(drawings.mesh(title, (8, 32), specs, mesh), encoding="utf-8")


class Layers(Module):
    """The program of the timeline."""

    kernels: tuple[jax.Array, ...]
    activation: str = static(default="relu")


@jax.jit
def gradient(layers: Layers, x: jax.Array) -> Layers:
    """Twelve layers, so that compiling takes a while."""

    def loss(layers: Layers) -> jax.Array:
        y = x
        for kernel in layers.kernels:
            y = getattr(jax.nn, layers.activation)(y @ kernel)
        return jnp.mean(y**2)

    return jax.grad(loss)(layers)


def draw_timeline(file: Path) -> None:
    """Draw sixty calls, of which three trace and compile, with the causes from the reports."""
    kernels, reports = tuple(jnp.eye(256) for _ in range(12)), list[str]()
    batches = [jnp.ones((size, 256)) for size in 40 * [512] + [300] + 9 * [512]]
    calls = [(Layers(kernels), batch) for batch in batches] + 10 * [(Layers(kernels, "gelu"), batches[0])]
    done: list[drawings.Call] = []
    jax.block_until_ready(batches)
    start = time.perf_counter()
    with explain_retraces(on_report=lambda report: reports.append(str(report).splitlines()[1].strip())):
        for layers, batch in calls:
            before = time.perf_counter() - start
            known = len(reports)
            jax.block_until_ready(gradient(layers, batch))
            cause = reports[-1] if len(reports) > known else "first trace" if not done else None
            done.append(drawings.Call(before, time.perf_counter() - start, cause))
    file.write_text(drawings.timeline("Sixty calls of one jitted function", done), encoding="utf-8")


def draw_vector() -> None:
    """Draw all SVG files but step.svg, which the benchmark of the step draws."""
    draw_terminal(IMAGES / "terminal.svg")
    draw_tree(IMAGES / "tree.svg")
    draw_mesh(IMAGES / "mesh.svg")
    draw_timeline(IMAGES / "timeline.svg")
    draw_first_model(IMAGES / "first-model.svg")
    draw_language_model(IMAGES / "language-model.svg")
    draw_reinforcement_learning(IMAGES / "reinforcement-learning.svg")
    draw_lora(IMAGES / "lora.svg")


if __name__ == "__main__":
    draw_vector()
    if sys.argv[1:] != ["vector"]:
        draw_notebook(IMAGES / "notebook.png", LIGHT)
        draw_notebook(IMAGES / "notebook-dark.png", DARK)
        draw_site(ROOT / "output" / "pictures")
