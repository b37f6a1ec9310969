"""Checkpoint libraries under the same faults: `python benchmarks/faults.py` prints the table of the docs.

Each cell is a program's result: `right` values, an `error`, or **wrong** values without an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from treewright.checkpoint import CheckpointManager, load, save

if TYPE_CHECKING:
    from collections.abc import Callable

FLIPS = 60


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to save a tree into a folder and to load it, into a tree."""

    name: str
    save: Callable[[Path, Any], object]
    load: Callable[[Path, Any], Any]


def save_by_manager(folder: Path, tree: Any, step: int = 1) -> None:
    """Save a step with a new `CheckpointManager`."""
    with CheckpointManager(folder) as manager:
        manager.save(step, tree)


def save_by_orbax(folder: Path, tree: Any, step: int = 1) -> None:
    """Save a step with a new manager of Orbax."""
    with ocp.CheckpointManager(folder) as manager:
        manager.save(step, args=ocp.args.StandardSave(tree))


def load_by_orbax(folder: Path, like: Any) -> Any:
    """Load step 1 with Orbax's manager."""
    with ocp.CheckpointManager(folder) as manager:
        return manager.restore(1, args=ocp.args.StandardRestore(like))


WAYS = (
    Way("file", lambda folder, tree: save(folder / "x", tree), lambda folder, like: load(folder / "x", like=like)),
    Way("manager", save_by_manager, lambda folder, like: CheckpointManager(folder).restore(like=like)),
    Way("Orbax", save_by_orbax, load_by_orbax),
    Way(
        "equinox",
        lambda folder, tree: equinox.tree_serialise_leaves(folder / "x", tree),
        lambda folder, like: equinox.tree_deserialise_leaves(folder / "x", like),
    ),
)


def outcome(way: Way, folder: Path, like: Any, right: Any) -> str:
    """The result of loading: right, an error, or wrong."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            found = jax.tree.map(np.asarray, way.load(folder, like))
    except Exception:  # noqa: BLE001  any exception is a result
        return "error"
    same = jax.tree.structure(found) == jax.tree.structure(right) and all(
        one.dtype == other.dtype and one.tobytes() == other.tobytes()
        for one, other in zip(jax.tree.leaves(found), map(np.asarray, jax.tree.leaves(right)), strict=True)
    )
    return "right" if same else "**wrong**"


def data_file(folder: Path) -> Path:
    """The largest file, which contains the arrays."""
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def tree() -> dict[str, Any]:
    """Two arrays."""
    return {"a": jnp.asarray(np.random.default_rng(0).normal(size=(64, 256)), jnp.float32), "b": jnp.arange(100)}


def bit_flips(way: Way, folder: Path) -> str:
    """Flip one bit at a time in the largest file."""
    way.save(folder, tree())
    file, chance = data_file(folder), random.Random(0)  # noqa: S311
    content, found = file.read_bytes(), list[str]()
    for _ in range(FLIPS):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        found.append(outcome(way, folder, tree(), tree()))
    wrong = found.count("**wrong**")
    return f"**{wrong} wrong**" if wrong else "error" if "error" in found else "right"


def page_of_zeros(way: Way, folder: Path) -> str:
    """Overwrite one page, as a lost write does."""
    way.save(folder, tree())
    file = data_file(folder)
    content = file.read_bytes()
    start = len(content) // 2 // 4096 * 4096
    file.write_bytes(content[:start] + bytes(4096) + content[start + 4096 :])
    return outcome(way, folder, tree(), tree())


def cut_file(way: Way, folder: Path) -> str:
    """Cut the largest file in half."""
    way.save(folder, tree())
    file = data_file(folder)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return outcome(way, folder, tree(), tree())


def other_dtype(way: Way, folder: Path) -> str:
    """Load floats, one above 2**31, into a template of int32."""
    saved = {"a": jnp.asarray([1.7, 2.0**40])}
    way.save(folder, saved)
    return outcome(way, folder, {"a": jnp.zeros(2, jnp.int32)}, saved)


def other_names(way: Way, folder: Path) -> str:
    """Load into a template with one name gone and a new one."""
    way.save(folder, {"a": jnp.ones(3), "b": jnp.zeros(3)})
    return outcome(way, folder, {"b": jnp.zeros(3), "c": jnp.zeros(3)}, None)


def order_of_fields(way: Way, folder: Path) -> str:
    """Load into a class whose fields are in a different order."""

    def pair(*names: str) -> Any:
        fields: Any = [(name, jax.Array) for name in names]
        cls: Any = dataclasses.make_dataclass("Pair", fields)
        jax.tree_util.register_dataclass(cls, list(names), [])
        return cls(**{name: jnp.full(3, float(ord(name))) for name in names})

    way.save(folder, pair("a", "b"))
    return outcome(way, folder, jax.tree.map(jnp.zeros_like, pair("b", "a")), pair("b", "a"))


def typed_key(way: Way, folder: Path) -> str:
    """Save and load a typed PRNG key."""
    try:
        way.save(folder, {"key": jax.random.key(7)})
        found = way.load(folder, {"key": jax.random.key(0)})["key"]
    except Exception:  # noqa: BLE001
        return "error"
    return "right" if (jax.random.key_data(found) == jax.random.key_data(jax.random.key(7))).all() else "**wrong**"


def donated_template(way: Way, folder: Path) -> str:
    """Load into a template whose array was donated."""
    way.save(folder, {"a": jnp.ones(3)})
    like = {"a": jnp.zeros(3)}
    like["a"].delete()
    return outcome(way, folder, like, {"a": jnp.ones(3)})


FAULTS: dict[str, Callable[[Way, Path], str]] = {
    f"{FLIPS} flipped bits": bit_flips,
    "a page of zeros": page_of_zeros,
    "a file cut in half": cut_file,
    "a different dtype in the template": other_dtype,
    "leaves `a`, `b` into `b`, `c`": other_names,
    "fields in a different order": order_of_fields,
    "a typed key": typed_key,
    "a donated template": donated_template,
}


# Runs: only the two managers


def flipped_best_metric(ours: bool, folder: Path) -> str:  # noqa: FBT001
    """The best step, after a digit of its metric changed on disk and one more save."""
    best: Any = {"keep": 1, "keep_best": 1, "metric": "loss", "mode": "min"}
    options = ocp.CheckpointManagerOptions(max_to_keep=1, best_fn=lambda metrics: metrics["loss"], best_mode="min")
    for step, loss in ((1, 3.5), (2, 1.5), (3, 4.5)):
        if step == 3:
            for file in (folder / "2").rglob("*"):
                if file.is_file() and file.suffix == "" and b"1.5" in (data := file.read_bytes()):
                    file.write_bytes(data.replace(b"1.5", b"9.5"))
        if ours:
            with CheckpointManager(folder, **best) as manager:
                manager.save(step, tree(), metrics={"loss": loss})
        else:
            with ocp.CheckpointManager(folder, options=options) as plain:
                plain.save(step, args=ocp.args.StandardSave(tree()), metrics={"loss": loss})
    return "kept" if (folder / "2").is_dir() else "**deleted**"


def reopened_with_defaults(ours: bool, folder: Path) -> str:  # noqa: FBT001
    """Save six steps, each with a new manager without options."""
    for step in range(6):
        (save_by_manager if ours else save_by_orbax)(folder, tree(), step)
    return "all steps kept" if len([path for path in folder.iterdir() if path.name.isdecimal()]) == 6 else "**deleted**"


def link_to_photos(ours: bool, folder: Path) -> str:  # noqa: FBT001
    """Save into a folder with a hostile link."""
    photos = folder.with_name("photos")
    (photos / "2024").mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    (folder / ".thrown-out").symlink_to(photos)
    (save_by_manager if ours else save_by_orbax)(folder, tree())
    return "untouched" if (photos / "2024").is_dir() else "**emptied**"


RUNS: dict[str, Callable[[bool, Path], str]] = {
    "the best step's metric changed on disk": flipped_best_metric,
    "a run opened again with defaults": reopened_with_defaults,
    "`.thrown-out` is a link": link_to_photos,
}


def main() -> None:
    """Print the table."""
    rows = [["fault", *(way.name for way in WAYS)]]
    root = Path(tempfile.mkdtemp())
    for number, fault in enumerate([*FAULTS, *RUNS]):
        cells: list[str] = []
        for way in WAYS:
            folder = root / f"{number}-{way.name}" / "run"
            folder.mkdir(parents=True)
            if fault in FAULTS:
                cells.append(FAULTS[fault](way, folder))
            else:
                cells.append(RUNS[fault](way.name == "manager", folder) if way.name in {"manager", "Orbax"} else "")
        rows.append([fault, *cells])
    shutil.rmtree(root)
    rows.insert(1, ["---"] * len(rows[0]))
    for row in rows:
        sys.stdout.write(f"| {' | '.join(row)} |\n")


if __name__ == "__main__":
    main()
