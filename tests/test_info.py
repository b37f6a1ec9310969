"""`python -m treewright info`: the facts for an issue report."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import NoReturn

import jax
import pytest

from treewright.__main__ import main


def info_lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in lines)}


def test_info_prints_versions(capsys: pytest.CaptureFixture[str]) -> None:
    info = info_lines(capsys)

    assert info["Python"].startswith(f"{platform.python_version()} (CPython) on ")
    assert {name: info[name] for name in ("treewright", "jax", "jaxlib", "numpy", "optax")} == {
        name: version(name) for name in ("treewright", "jax", "jaxlib", "numpy", "optax")
    }


def test_info_lists_missing_packages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])  # where importlib.metadata looks

    assert info_lines(capsys)["flax"] == "not installed"


@pytest.mark.cpu
@pytest.mark.devices(4)
def test_info_counts_devices_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert info_lines(capsys)["devices"] == "4 x cpu (cpu); process 0 of 1"


def test_info_prints_why_there_are_no_devices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_devices() -> NoReturn:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", no_devices)

    assert info_lines(capsys)["devices"] == "none: Unable to initialize backend 'cuda'"


def test_info_lists_options_of_jax_and_xla(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")

    options = info_lines(capsys)["options"]

    assert "JAX_ENABLE_X64=1" in options
    assert "XLA_FLAGS=--xla_dump_to=x" in options


def test_info_rejects_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--verbose"]) == 2
    assert capsys.readouterr().err == "usage: python -m treewright info\n"
