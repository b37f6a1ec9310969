"""The architecture: which module may import which, and that no other import is there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.test_house import SOURCE, hold, modules_in, tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# From the ground up: each module and all it may import. A module imports only what stands above its own line.
LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "_jax": (),
    "_values": (),
    "_values.classes": ("errors",),
    "_values.plain": ("_values.classes",),
    "_values.reach": ("_values.classes",),
    "_values.text": ("_values.classes",),
    "_values.exact": (
        "_values.classes",
        "_values.plain",
        "_values.reach",
        "_values.text",
    ),
    "_values.freeze": (
        "_values.classes",
        "_values.exact",
        "_values.plain",
        "_values.reach",
        "_values.text",
    ),
    "_nodes": (),
    "_nodes.fields": (
        "_values.classes",
        "errors",
    ),
    "_nodes.statics": (
        "_values.classes",
        "_values.exact",
        "_values.text",
        "errors",
    ),
    "_nodes.spec": (
        "_nodes.fields",
        "_nodes.statics",
        "errors",
    ),
    "_nodes.as_json": (
        "_nodes.spec",
        "_nodes.statics",
        "_values.classes",
        "_values.freeze",
        "_values.reach",
        "errors",
    ),
    "_nodes.node": (
        "_nodes.fields",
        "_nodes.spec",
        "_nodes.statics",
        "_values.classes",
        "errors",
    ),
    "_nodes.dunders": (
        "_nodes.node",
        "_nodes.spec",
        "_nodes.statics",
        "_values.classes",
        "_values.exact",
        "_values.text",
        "errors",
    ),
    "_nodes.init": (
        "_nodes.node",
        "_nodes.spec",
        "_values.classes",
        "errors",
    ),
    "_nodes.others": (
        "_nodes.as_json",
        "_nodes.node",
        "_nodes.spec",
        "_nodes.statics",
        "_values.classes",
    ),
    "_nodes.refusals": (
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_values.classes",
        "_values.freeze",
        "errors",
    ),
    "_nodes.make_class": (
        "_nodes.dunders",
        "_nodes.init",
        "_nodes.node",
        "_nodes.others",
        "_nodes.refusals",
        "_nodes.spec",
        "_values.classes",
    ),
    "_nodes.dataclass": (
        "_nodes.dunders",
        "_nodes.fields",
        "_nodes.make_class",
        "_nodes.spec",
        "_values.classes",
        "errors",
    ),
    "_nodes.module": (
        "_nodes.dataclass",
        "_nodes.dunders",
        "_nodes.fields",
        "_nodes.make_class",
        "_nodes.node",
        "_nodes.others",
        "_nodes.spec",
        "_values.classes",
        "_values.exact",
        "_values.text",
    ),
    "_trees": (),
    "_trees.paths": (
        "_nodes.node",
        "_nodes.spec",
    ),
    "_trees.level": (
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_nodes.statics",
        "_trees.paths",
        "_values.classes",
        "_values.freeze",
        "_values.text",
        "errors",
    ),
    "_trees.where": (
        "_trees.level",
        "_trees.paths",
        "_values.classes",
        "_values.text",
        "errors",
    ),
    "_trees.at": (
        "_trees.paths",
        "_trees.where",
        "_values.classes",
        "_values.text",
    ),
    "_trees.why": (
        "_trees.paths",
        "_values.classes",
        "_values.exact",
        "_values.reach",
        "_values.text",
    ),
    "_trees.diff": (
        "_nodes.dunders",
        "_nodes.node",
        "_nodes.spec",
        "_trees.level",
        "_trees.paths",
        "_trees.why",
        "_values.classes",
        "_values.text",
    ),
    "_trees.edit": (
        "_nodes.module",
        "_nodes.node",
        "_nodes.spec",
        "_trees.level",
        "_trees.paths",
        "_values.classes",
        "errors",
    ),
    "_trees.masks": (
        "_nodes.node",
        "_nodes.spec",
        "_trees.level",
        "_trees.paths",
        "_trees.where",
        "_values.classes",
        "_values.text",
    ),
    "_trees.sizes": (
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_trees.level",
        "_trees.paths",
        "_values.classes",
    ),
    "_trees.snapshot": (
        "_nodes.statics",
        "_trees.level",
        "_trees.why",
        "_values.classes",
        "_values.freeze",
    ),
    "_trees.stacking": (
        "_trees.diff",
        "_trees.paths",
        "_values.classes",
        "_values.text",
    ),
    "_trees.summary": (
        "_trees.level",
        "_trees.paths",
        "_trees.sizes",
        "_values.classes",
        "_values.text",
    ),
    "train": (
        "_nodes.fields",
        "_nodes.module",
        "_trees.masks",
    ),
    "typed": (),
    "retrace": (),
    "retrace.call": (
        "_jax",
        "_trees.diff",
        "_trees.level",
        "_trees.snapshot",
        "_trees.why",
        "_values.classes",
        "_values.reach",
        "_values.text",
    ),
    "retrace.check_statics": (
        "_trees.level",
        "_trees.paths",
        "_trees.why",
        "_values.classes",
        "_values.exact",
        "_values.reach",
        "_values.text",
    ),
    "retrace.history": (
        "_trees.diff",
        "_trees.level",
        "_trees.snapshot",
        "_trees.why",
        "_values.classes",
        "_values.reach",
        "retrace.call",
    ),
    "retrace.remedies": (
        "_trees.diff",
        "_trees.level",
        "_trees.why",
        "retrace.call",
    ),
    "retrace.report": (
        "_trees.diff",
        "retrace.call",
        "retrace.history",
        "retrace.remedies",
    ),
    "retrace.traced": (
        "_values.classes",
        "_values.exact",
        "errors",
        "retrace.call",
        "retrace.history",
        "retrace.report",
    ),
    "retrace.watch": (
        "_trees.level",
        "retrace.call",
        "retrace.history",
        "retrace.report",
        "retrace.traced",
    ),
    "retrace.explain": (
        "errors",
        "retrace.history",
        "retrace.report",
        "retrace.traced",
        "retrace.watch",
    ),
    "checkpoint.atomic": (),
    "checkpoint.digests": ("errors",),
    "checkpoint.leaves": (
        "_values.classes",
        "_values.freeze",
        "_values.text",
        "errors",
    ),
    "checkpoint.manifest": (
        "checkpoint.digests",
        "checkpoint.leaves",
        "errors",
    ),
    "checkpoint.tree": (
        "_nodes.as_json",
        "_nodes.node",
        "_nodes.spec",
        "_trees.paths",
        "_values.classes",
        "_values.reach",
        "_values.text",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "errors",
    ),
    "checkpoint.compare": (
        "_values.classes",
        "_values.freeze",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.tree",
        "errors",
    ),
    "checkpoint.restore": (
        "_values.classes",
        "checkpoint.compare",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.tree",
        "errors",
    ),
    "checkpoint.file": (
        "checkpoint.atomic",
        "checkpoint.digests",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.restore",
        "checkpoint.tree",
        "errors",
    ),
    "checkpoint.api": (
        "checkpoint.file",
        "checkpoint.manifest",
        "checkpoint.restore",
        "checkpoint.tree",
    ),
    "checkpoint.manager": (
        "checkpoint.atomic",
        "checkpoint.digests",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.restore",
        "checkpoint.tree",
        "errors",
    ),
    "sharding.rules": (),
    "sharding.specs": (
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_trees.level",
        "_trees.paths",
        "_values.text",
        "errors",
        "sharding.rules",
    ),
    "sharding.constrain": (
        "_values.text",
        "errors",
        "sharding.rules",
        "sharding.specs",
    ),
    "sharding.init": (
        "sharding.rules",
        "sharding.specs",
    ),
    "sharding.processes": (
        "_nodes.node",
        "_nodes.spec",
        "_trees.paths",
        "_values.classes",
        "_values.reach",
        "_values.text",
        "errors",
    ),
    "sharding.report": (
        "_trees.paths",
        "_values.text",
        "sharding.rules",
        "sharding.specs",
    ),
    "testing.assertions": ("_trees.diff",),
    "testing.plugin": (
        "errors",
        "retrace.explain",
        "retrace.report",
    ),
    "checkpoint": (
        "checkpoint.api",
        "checkpoint.compare",
        "checkpoint.manager",
        "checkpoint.manifest",
    ),
    "sharding": (
        "sharding.constrain",
        "sharding.init",
        "sharding.processes",
        "sharding.report",
        "sharding.rules",
        "sharding.specs",
    ),
    "testing": ("testing.assertions",),
}


def imports_of(path: Path, package: str, modules: Iterable[str]) -> Iterator[str]:
    """The modules of the package that a file imports anywhere in it, `if TYPE_CHECKING` and functions included."""
    known = set(modules)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"a relative import in line {node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        else:
            continue
        for name in full:
            if f"{name}.".startswith(f"{package}."):
                inside = name[len(package) + 1 :]
                yield inside if inside in known else inside.rpartition(".")[0]


def layer_breaches(package: Path, layers: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    modules = {name: path for name, path in modules_in(package).items() if name}
    yield from (f"{name} is not in the list of layers" for name in modules if name not in layers)
    yield from (f"{name} is in the list of layers and not in the house" for name in layers if name not in modules)
    order = list(layers)
    for name, allowed in layers.items():
        above = order[: order.index(name)]
        yield from (
            f"{name} may not import {other}: it stands lower in the list" for other in allowed if other not in above
        )
        imported = set(imports_of(modules[name], package.name, modules)) if name in modules else set()
        yield from (f"{name} imports {other or package.name}" for other in sorted(imported - set(allowed)))
        yield from (
            f"{name} does not import {other} any more" for other in allowed if name in modules and other not in imported
        )


def test_imports_only_point_down_the_layers() -> None:
    hold(layer_breaches(SOURCE, LAYERS))


def test_imports_that_point_up_are_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    (package / "floor").mkdir(parents=True)
    (package / "__init__.py").write_text("from house.floor.roof import tile\n")
    (package / "ground.py").write_text("def late():\n    from house.floor import roof\n")
    (package / "floor" / "__init__.py").write_text("")
    (package / "floor" / "roof.py").write_text("import house.ground\nfrom house import helper\nfrom .. import ground\n")
    (package / "attic.py").write_text("from houses import other\n")

    breaches = list(
        layer_breaches(package, {"ground": (), "floor": ("cellar",), "floor.roof": ("ground",), "cellar": ()})
    )

    assert breaches == [
        "attic is not in the list of layers",
        "cellar is in the list of layers and not in the house",
        "ground imports floor.roof",
        "floor may not import cellar: it stands lower in the list",
        "floor does not import cellar any more",
        "floor.roof imports house",
        "floor.roof imports a relative import in line 3",
    ]
