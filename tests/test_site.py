"""The documentation builds without a warning, and its reference has every public name."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.public_names import public_names

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def built(config: Path, site: Path) -> str:
    """What building the site says. Warnings are errors."""
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
    assert built(ROOT / "mkdocs.yml", folder) == ""
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in (ROOT / "docs").glob("**/*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / f"{name}.html").exists(), page


def reference(site: Path) -> str:
    """All pages of the reference, as HTML."""
    return "".join(page.read_text(encoding="utf-8") for page in sorted((site / "reference").glob("*.html")))


def index(site: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))[
        "docs"
    ]
    return found


@pytest.mark.parametrize("page", ["index", "changelog", "contributing", "examples/index", "examples/digits"])
def test_the_site_has_the_pages_of_the_repository(site: Path, page: str) -> None:
    assert (site / f"{page}.html").exists()


def test_the_reference_has_every_public_name_under_its_public_module(site: Path) -> None:
    anchors = set(re.findall(r'id="([^"]+)"', reference(site)))

    assert [name for name in public_names() if name not in anchors] == []


def test_the_reference_shows_no_private_default_and_no_badge(site: Path) -> None:
    shown = html.unescape(re.sub(r"<[^>]+>", "", reference(site)))

    assert re.findall(r"= [\w.]*\b_[A-Za-z]\w*", shown) == []
    assert "class-attribute" not in shown


def test_examples_in_docstrings_are_shown_as_code(site: Path) -> None:
    page = reference(site)

    assert page.count("&gt;&gt;&gt;") > len(public_names()) / 2  # highlighted code keeps its prompts
    assert "<blockquote>" not in page  # to Markdown, which an unknown section is, a prompt is a quotation


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("trees", "treewright.spec_like"),
        ("checkpoints", "treewright.checkpoint.save"),
        ("start", "treewright.TrainState"),
        ("recipes/training", "treewright.stack"),
    ],
)
def test_a_name_in_a_guide_links_to_the_reference(site: Path, page: str, name: str) -> None:
    text = (site / f"{page}.html").read_text(encoding="utf-8")

    assert re.search(rf'href="[./]*reference/\w+\.html#{re.escape(name)}"', text)


# What people type into the search, and a page that must be among the results.
SEARCHED = {
    "ConcretizationTypeError": "faq",
    "EMA": "words",
    "FAQ": "faq",
    "LoRA": "tutorials/lora",
    "PyTreeNode": "words",
    "Sequential": "faq",
    "filter_jit": "words",
    "freeze parts": "recipes/training",
    "hydra": "recipes/configs",
    "optimizer": "words",
    "pydantic": "recipes/configs",
    "static_argnums": "faq",
    "tree_at": "words",
    "tutorial": "tutorials",
}


@pytest.mark.parametrize("word", SEARCHED)
def test_a_word_of_other_libraries_finds_its_page(site: Path, word: str) -> None:
    found = {entry["location"] for entry in index(site) if word.lower() in (entry["title"] + entry["text"]).lower()}

    assert any(location.startswith(SEARCHED[word]) for location in found), found


def test_the_site_opens_from_disk_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r'<a [^>]*?href="([^"#]*)', text) if page.name != "404.html" else []
        inner = [link for link in links if link and not re.match(r"[a-z]+:", link)]
        assert [link for link in inner if not (page.parent / link).is_file()] == [], page  # no folder listing
        assert re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="https?:[^"]*', text) == [], page
