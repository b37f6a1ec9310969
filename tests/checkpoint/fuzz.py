"""A fuzzer of checkpoints: files with changes that an accident or an attacker could make, which have to be refused.

`python -m tests.checkpoint.fuzz --seconds 3600` makes such files until the time is over. It changes bytes, and it
changes entries by the grammar of the header, of the manifest and of the statics, with a digest that fits. Whatever it
makes has to load, or to raise an error of ours, in little time and memory; after a change of bytes alone, what loads
has to be what was saved. A file that does otherwise is kept, and its name and the traceback are printed.

With `--guided` the changes that reach new lines of ours are changed further, by atheris (`pip install atheris`).

With `--steps` it changes the newest of two steps of a training run: bytes and entries of its files, and what the files
are. The run has to go on from that step, exactly as it was saved, or from the one before.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import os
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.checkpoint import models
from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import STATICS, Settings, Size, net
from treewright._core import json_kinds
from treewright._core.as_json import FORMS
from treewright.checkpoint import CheckpointManager, load, read_manifest, save
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.leaves import DTYPES, KINDS
from treewright.checkpoint.manifest import CONTAINERS, DIGEST, TEXT
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTIAL: Any = jax.tree_util.Partial
SECONDS = 5.0  # of the processor that one file may take
MEGABYTES = 400  # that the process may grow by, with all it has loaded
CLASSES = [
    "tests.checkpoint.models:Settings",
    "tests.checkpoint.models:Size",
    "os:system",
    "builtins:eval",
    "jax:nn.relu",
]
# What stands in the parts of forms: dates, digits, keys of time zones, paths, regular expressions, base64.
TEXTS = [
    *(
        "2024-02-29",
        "01:02:03",
        "0x1f",
        "inf",
        "nan",
        "0" * 32,
        "UTC",
        "../a",
        "(" * 50 + ")" * 50,
        "a{1,9999}",
        "AAAA",
    ),
    *("READ", "BLUE", "Auto", "relu", "-1e999999", "\ud800", "\0", "x" * 100),
]


def tree() -> Any:
    """Every container, every kind of leaf, and a static of every kind."""
    array = jnp.arange(5.0)
    return {
        "net": net(),
        "statics": [Settings(value) for value, _ in STATICS.values()],
        "numbers": [True, 7, 0.5, 2 + 3j, np.float16(2)],
        "dicts": {"a": OrderedDict(b=1, a=2), "b": defaultdict(list, x=1), "c": {1: 2.0}},
        "key": jax.random.key(0),
        "named": (Size(1, 2), None, (), []),
        "tied": (array, [array]),
        "arrays": [jnp.ones((2, 3), "bfloat16"), np.zeros(0), np.ones(2, np.complex128)],
    }


# Changes


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside one, itself left out."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while waiting:  # and no recursion: a document that has been changed often is deep
        above, value = waiting.pop()
        entries: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in entries:
            yield (*above, key)
            waiting.append(((*above, key), inner))


def copied(value: Any) -> Any:
    """A copy, which may be deeper than `copy.deepcopy` goes."""
    return json.loads(json.dumps(value))


def inside(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def anything(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value: plain, of the words of the format, or a static in a form that fits or nearly does."""
    words = [*KINDS, *DTYPES, *CONTAINERS, *FORMS, *CLASSES, "all", "0:1", "0:1,0:2", "static", "child"]
    plain: list[Callable[[], Any]] = [
        lambda: chance.choice([None, True, False, 0.5, -0.0, 1e308, "", "a", "x" * 1000, "0" * 32, "\ud800", "\0"]),
        lambda: chance.choice([0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400]),
        lambda: chance.choice(words),
    ]
    made: list[Callable[[], Any]] = [
        lambda: [anything(chance, depth + 1) for _ in range(chance.randrange(4))],
        lambda: {chance.choice(words): anything(chance, depth + 1) for _ in range(chance.randrange(4))},
        lambda: [chance.choice([*FORMS]), *(anything(chance, depth + 1) for _ in range(chance.randrange(5)))],
        lambda: chance.choice([form for _, form in STATICS.values()]),
        lambda: nested(chance.choice([10, 63, 64, 65, 300])),
        lambda: ["frozenset", *(k * (2**61 - 1) for k in range(chance.choice([3, 65, 20_000])))],
        lambda: [[]] * chance.choice([10, 10_000]),
    ]
    return chance.choice(plain if depth > 4 else plain + made)()


def by_grammar(chance: random.Random, depth: int = 0) -> Any:
    """A static of a form that fits, whatever its parts mean."""
    if depth > 3 or chance.random() < 0.2:
        return chance.choice([None, True, 0, -1, 2**61 - 1, 1.5, "a", "", *CLASSES])
    kind = chance.choice([*FORMS])
    form = FORMS[kind]
    parts = [*form.parts, *([form.rest] * chance.randrange(4) if form.rest else [])]
    return [kind, *(part_of(part, chance, depth + 1) for part in parts)]


def part_of(part: Callable[[Any], Any], chance: random.Random, depth: int) -> Any:
    """Something that may stand where a form has this part."""
    some = range(chance.randrange(4))
    if part is json_kinds.text:
        return chance.choice([*CLASSES, *DTYPES, *TEXTS])
    if part is json_kinds.number:
        return chance.choice([0, 1, -1, 3, 40, 2**31, 10**30])
    if part is json_kinds.sizes:
        return [chance.choice([0, 1, 2, 2**40]) for _ in some]
    if part is json_kinds.listed:
        return [by_grammar(chance, depth) for _ in some]
    if part is json_kinds.named:
        return {chance.choice(["value", "x", "rate", "name", ""]): by_grammar(chance, depth) for _ in some}
    return (
        [by_grammar(chance, depth), by_grammar(chance, depth)] if part is json_kinds.pair else by_grammar(chance, depth)
    )


def with_other_statics(manifest: Any, chance: random.Random) -> Any:
    """A manifest with other statics in one to three of its nodes, or other keys."""
    manifest = copied(manifest)
    nodes = [node for node in manifest["containers"] if node.get("statics") or node.get("keys")]
    for _ in range(chance.randint(1, 3)):
        node = chance.choice(nodes)
        held = node.get("statics") or node["keys"]
        held[chance.choice(list(held) if isinstance(held, dict) else range(len(held)))] = by_grammar(chance)
    return manifest


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = ["tuple", value]
    return value


def changed(document: Any, chance: random.Random) -> Any:
    """A document with one to four entries changed, moved, doubled or left out."""
    document = copied(document)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        listed = list(places(document))
        place = chance.choice(listed)
        above, key = inside(document, place[:-1]), place[-1]
        match chance.randrange(6):
            case 0:
                del above[key]
            case 1:
                above[key] = copied(inside(document, chance.choice(listed)))
            case 2 if isinstance(above, list):
                above.insert(key, copied(above[key]))
            case 3 if isinstance(above[key], int):
                above[key] += chance.choice([-1, 1, 2**32])
            case 4 if isinstance(above[key], str) and above[key]:
                at = chance.randrange(len(above[key]))
                above[key] = above[key][:at] + chance.choice("a.:,0/\0") + above[key][at + chance.randrange(2) :]
            case _:
                above[key] = copied(anything(chance))  # which may be, or hold, one thing twice
    return document


def damaged(content: bytes, chance: random.Random) -> bytes:
    """A file with some bytes flipped, cut out, put in, or taken from elsewhere in it."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 3, 10])):
        at, length = chance.randrange(len(data) + 1), chance.choice([1, 1, 8, 100])
        match chance.randrange(5):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = chance.randbytes(length)
            case _:
                start = chance.randrange(len(data) + 1)
                data[at : at + length] = data[start : start + length]
    return bytes(data)


def signed(text: str) -> dict[str, str]:
    """The metadata with this text in place of the manifest, and a digest that fits."""
    return {TEXT: text, DIGEST: digest_of(text.encode())}


class Saved:
    """A tree and the parts of the file in which it was saved."""

    @classmethod
    def at(cls, path: Path, tree: Any) -> Saved:
        """A tree, saved there."""
        save(path, tree)
        return cls(path.read_bytes(), tree)

    def __init__(self, content: bytes, tree: Any) -> None:
        self.content = content
        self.tree = tree
        (length,) = struct.unpack_from("<Q", self.content)
        self.header = json.loads(self.content[8 : 8 + length])
        self.data = self.content[8 + length :]
        self.manifest = json.loads(self.header["__metadata__"][TEXT])

    def file_of(self, header: Any, manifest: Any) -> bytes:
        """A file with this header and this manifest, which has a digest that fits."""
        if isinstance(header, dict) and isinstance(header.get("__metadata__"), dict):
            header["__metadata__"].update(signed(json.dumps(manifest)))
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + self.data

    def changed(self, chance: random.Random) -> tuple[bytes, bool]:
        """A changed file, and whether only bytes were changed, which no load may overlook."""
        match chance.randrange(7):
            case 5 | 6:
                return self.file_of(copied(self.header), with_other_statics(self.manifest, chance)), False
            case 0 | 1:
                return self.file_of(copied(self.header), changed(self.manifest, chance)), False
            case 2:
                return self.file_of(changed(self.header, chance), self.manifest), False
            case 3:
                return self.file_of(changed(self.header, chance), changed(self.manifest, chance)), False
            case _:
                return damaged(self.content, chance), True


class Fuzzer:
    """Two saved trees, and files with changes of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = folder / "x"
        whole = tree()
        foreign = {"key": whole["key"], "foreign": PARTIAL(max, 1), "array": [jnp.ones(3)] * 3}
        self.saved = [Saved.at(self.path, each) for each in (foreign, whole)]
        self.tree = whole
        self.seen: Counter[str] = Counter()

    def uses(self) -> dict[str, Callable[[], Any]]:
        """All ways of reading a file."""
        return {
            "manifest": lambda: read_manifest(self.path),
            "alone": lambda: load(self.path, modules=[models, jax.nn]),
            "like": lambda: load(self.path, like=self.tree),
            "loosely": lambda: load(self.path, like=self.tree, strict=False, on_static="warn", allow_cast=True),
            "migrated": lambda: load(self.path, like=self.tree, migrate=lambda leaves: leaves, on_static="ignore"),
        }

    def step(self) -> None:
        """Make one file and read it in all ways.

        Raises:
            AssertionError: If damage was accepted, or reading took too long.
            Exception: Whatever reading raised that is not ours.
        """
        saved = self.chance.choice(self.saved)
        self.tree = saved.tree
        self.read(*saved.changed(self.chance))

    def read(self, content: bytes, only_bytes: bool) -> None:
        """Read a file in all ways.

        Raises:
            AssertionError: If damage was accepted, or reading took too long.
            Exception: Whatever reading raised that is not ours.
        """
        self.path.write_bytes(content)
        for name, found, error in outcomes(self.uses()):
            if error is not None:
                check(len(str(error)) < 20_000, "the message is too long")
                self.seen[f"{name}: {type(error).__name__}"] += 1
            else:
                self.seen[f"{name}: loaded"] += 1
                if only_bytes and name in {"alone", "like"}:
                    assert_same(plain(found), plain(self.tree))


class GuidedFuzzer(Fuzzer):
    """Files that are changed again where a change has reached new lines, which atheris sees."""

    def changed(self, content: bytes, longest: int, seed: int) -> bytes:
        """A file, with one more change by the grammar where it can be read, else of its bytes."""
        chance = random.Random(seed)
        try:
            result, _ = Saved(content, self.tree).changed(chance)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, RecursionError):
            result = damaged(content, chance)
        return result[:longest]

    def run(self, seconds: float) -> None:
        """Run until the time is over, and end the process, as atheris does."""
        atheris: Any = importlib.import_module("atheris")  # has no types

        for module in [module for name, module in sys.modules.items() if name.startswith("treewright.")]:
            for name, function in vars(module).items():
                if inspect.isfunction(function) and function.__module__ == module.__name__:
                    setattr(module, name, atheris.instrument_func(function))
        corpus = self.path.parent / "corpus"
        corpus.mkdir()
        for number, saved in enumerate(self.saved):
            (corpus / str(number)).write_bytes(saved.content)
        largest = 2 * max(len(saved.content) for saved in self.saved)
        options = [
            f"-max_total_time={int(seconds)}",
            f"-max_len={largest}",
            "-len_control=0",
            f"-timeout={int(SECONDS)}",
        ]
        read = functools.partial(self.read, only_bytes=False)
        atheris.Setup([sys.argv[0], *options, str(corpus)], read, custom_mutator=self.changed)
        atheris.Fuzz()


class StepFuzzer:
    """A folder with two steps, and changes of the newer one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder / "run"
        self.trees = {step: {"net": net(), "key": jax.random.key(step), "x": jnp.full(3, step)} for step in (1, 2)}
        with CheckpointManager(self.folder) as manager:
            for step, tree in self.trees.items():
                manager.save(step, tree, items={"data": {"epoch": step}})
        self.newest = self.folder / "2"
        self.files = {path: path.read_bytes() for path in sorted(self.newest.rglob("*")) if path.is_file()}
        self.path = next(iter(self.files))  # what was changed last
        self.seen: Counter[str] = Counter()

    def uses(self) -> dict[str, Callable[[], Any]]:
        """All ways of resuming."""
        return {
            "like": lambda: CheckpointManager(self.folder).restore_latest_valid(like=self.trees[1]),
            "alone": lambda: CheckpointManager(self.folder).restore_latest_valid(modules=[models, jax.nn]),
        }

    def change(self) -> bool:
        """Change one file of the newest step; whether by accident, which no digest of the manifest fits."""
        self.path = self.chance.choice(list(self.files))
        content = self.files[self.path]
        match self.chance.randrange(8):
            case 0:
                self.path.unlink()
            case 1:
                self.path.unlink()
                self.path.mkdir()
            case 2:
                self.path.unlink()
                os.mkfifo(self.path)
            case 3:
                self.path.unlink()
                self.path.symlink_to(self.chance.choice(["nowhere", self.path.name, "/dev/zero"]))
            case 4 | 5 | 6:
                self.path.write_bytes(damaged(content, self.chance) if content else b"x")
            case _:
                self.path = self.newest / "manifest" / "metadata"
                manifest = json.loads(json.loads(self.files[self.path])[TEXT])
                change = self.chance.choice([with_other_statics, changed])
                self.path.write_text(json.dumps(signed(json.dumps(change(manifest, self.chance)))))
                return False
        return True

    def repair(self) -> None:
        """Make the newest step what it was."""
        if self.path.is_dir():
            self.path.rmdir()
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(self.files[self.path])

    def step(self) -> None:
        """Change the newest step, resume in all ways, and repair it.

        Raises:
            AssertionError: If damage was accepted, or resuming took too long.
            Exception: Whatever resuming raised.
        """
        accident = self.change()
        for name, found, error in outcomes(self.uses()):
            if error is not None:  # a whole step, which somebody made of another tree
                check(not accident, f"an accident ended the run: {error}")
                self.seen[f"{name}: another tree"] += 1
            else:
                self.seen[f"{name}: step {found.step}"] += 1
                if accident or found.step == 1:
                    assert_same(plain(found.tree), plain(self.trees[found.step]))
        self.repair()


def outcomes(uses: dict[str, Callable[[], Any]]) -> Iterator[tuple[str, Any, CheckpointError | None]]:
    """What each use gives, or the error of ours that it raises. It may take so long, with what is made of it.

    Raises:
        AssertionError: If it took longer.
        Exception: Whatever it raised that is not ours.
    """
    for name, use in uses.items():
        began, found, error = time.process_time(), None, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = use()
        except CheckpointError as caught:
            error = caught
        yield name, found, error
        taken = time.process_time() - began
        check(taken < SECONDS, f"{name} took {taken:.1f} s")


def check(holds: bool, otherwise: str) -> None:
    """Raise if something does not hold.

    Raises:
        AssertionError: If it does not.
    """
    if not holds:
        raise AssertionError(otherwise)


def plain(value: Any) -> Any:
    """With the data of its key in its place."""
    return {**value, "key": jax.random.key_data(value["key"])}


def memory() -> float:
    """The most megabytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(fuzzer: Fuzzer | StepFuzzer, *, seconds: float = 1e9, files: int = 10**9) -> Counter[str]:
    """Read changed files for so long, or so many; what became of them.

    Raises:
        AssertionError: At the first finding.
    """
    for use in fuzzer.uses().values():
        use()
    before, end, count = memory(), time.monotonic() + seconds, 0
    while count < files and time.monotonic() < end:
        count += 1
        try:
            fuzzer.step()
            assert memory() - before < MEGABYTES, f"the process has grown by {memory() - before:.0f} MB"
        except Exception as error:
            kept = Path(tempfile.mkdtemp()) / fuzzer.path.name
            if fuzzer.path.is_file():
                kept.write_bytes(fuzzer.path.read_bytes())
            raise AssertionError(f"file {count}, {fuzzer.path}, kept as {kept}: {error!r}") from error
    fuzzer.seen["files"] = count
    return fuzzer.seen


def main() -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--files", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--guided", action="store_true", help="by the lines that are reached")
    parser.add_argument("--steps", action="store_true", help="of a training run, in place of a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.guided:
            GuidedFuzzer(Path(folder), options.seed).run(options.seconds)
        try:
            fuzzer = (StepFuzzer if options.steps else Fuzzer)(Path(folder), options.seed)
            seen = run(fuzzer, seconds=options.seconds, files=options.files)
        except AssertionError:
            traceback.print_exc()
            sys.stderr.write(f"seed {options.seed}\n")
            return 1
    sys.stdout.write("".join(f"{count:8} {what}\n" for what, count in sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
