"""The documentation builds without a warning, and its reference has every public name."""

from __future__ import annotations

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


def test_the_reference_has_every_public_name_under_its_public_module(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "reference.html").read_text(encoding="utf-8"))

    assert [name for name in public_names() if not re.search(rf"\b{name}\b", shown)] == []


def test_examples_in_docstrings_are_shown_as_code(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")

    assert page.count("&gt;&gt;&gt;") > len(public_names()) / 2  # highlighted code keeps its prompts
    assert "<blockquote>" not in page  # to Markdown, which an unknown section is, a prompt is a quotation


def test_the_site_opens_from_disk_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("**/*.html"):
        text = page.read_text(encoding="utf-8")
        links = re.findall(r'<a [^>]*?href="([^"#]*)', text) if page.name != "404.html" else []
        inner = [link for link in links if link and not re.match(r"[a-z]+:", link)]
        assert [link for link in inner if not (page.parent / link).is_file()] == [], page  # no folder listing
        assert re.findall(r'<(?:script|link|img)[^>]*?(?:src|href)="https?:[^"]*', text) == [], page
