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
    "_nodes": (),
    "_nodes.classes": ("errors",),
    "_nodes.imports": (),
    "_nodes.converted": ("_nodes.classes", "errors"),
    "_nodes.representation": ("_nodes.classes",),
    "_nodes.reach": ("_nodes.classes",),
    "_nodes.plain": ("_nodes.classes",),
    "_nodes.refused": ("_nodes.classes", "_nodes.representation"),
    "_nodes.exact": (
        "_nodes.classes",
        "_nodes.plain",
        "_nodes.reach",
        "_nodes.refused",
        "_nodes.representation",
    ),
    "_nodes.freeze": ("_nodes.classes", "_nodes.exact", "_nodes.plain", "_nodes.reach", "_nodes.refused"),
    "_nodes.static_types": (),
    "_nodes.fields": ("_nodes.static_types",),
    "_nodes.statics": ("_nodes.classes", "_nodes.exact", "_nodes.refused", "_nodes.representation", "errors"),
    "_nodes.spec": ("_nodes.converted", "_nodes.fields", "_nodes.statics", "errors"),
    "_nodes.static_json": (
        "_nodes.classes",
        "_nodes.freeze",
        "_nodes.reach",
        "_nodes.spec",
        "_nodes.statics",
        "errors",
    ),
    "_nodes.export": ("_nodes.static_json", "_nodes.statics"),
    "_nodes.node": ("_nodes.classes", "_nodes.spec", "_nodes.statics", "errors"),
    "_nodes.state_dicts": ("_nodes.classes", "_nodes.imports", "_nodes.node", "_nodes.spec"),
    "_nodes.init": ("_nodes.classes", "_nodes.node", "_nodes.spec", "errors"),
    "_nodes.methods": (
        "_nodes.classes",
        "_nodes.exact",
        "_nodes.export",
        "_nodes.node",
        "_nodes.refused",
        "_nodes.state_dicts",
    ),
    "_nodes.protocols": (
        "_nodes.classes",
        "_nodes.exact",
        "_nodes.node",
        "_nodes.refused",
        "_nodes.representation",
        "_nodes.spec",
        "_nodes.statics",
        "errors",
    ),
    "_nodes.refusals": ("_nodes.classes", "_nodes.fields", "_nodes.freeze", "_nodes.node", "_nodes.spec", "errors"),
    "_nodes.definition": (
        "_nodes.classes",
        "_nodes.export",
        "_nodes.init",
        "_nodes.node",
        "_nodes.protocols",
        "_nodes.refusals",
        "_nodes.spec",
        "_nodes.state_dicts",
    ),
    "_nodes.dataclass": (
        "_nodes.classes",
        "_nodes.definition",
        "_nodes.fields",
        "_nodes.protocols",
        "_nodes.spec",
        "errors",
    ),
    "_nodes.replacing": ("_nodes.node", "_nodes.static_types"),
    "_nodes.module": (
        "_nodes.dataclass",
        "_nodes.definition",
        "_nodes.fields",
        "_nodes.methods",
        "_nodes.node",
        "_nodes.protocols",
        "_nodes.replacing",
        "_nodes.spec",
    ),
    "_nodes.wrapper": ("_nodes.dataclass", "_nodes.fields", "_nodes.static_types"),
    "_trees": (),
    "_trees.paths": ("_nodes.node", "_nodes.spec"),
    "_trees.texts": ("_nodes.classes", "_nodes.representation"),
    "_trees.reasons": (
        "_nodes.classes",
        "_nodes.exact",
        "_nodes.reach",
        "_nodes.refused",
        "_trees.paths",
        "_trees.texts",
    ),
    "_trees.levels": (
        "_nodes.classes",
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_nodes.statics",
        "_trees.paths",
        "_trees.texts",
    ),
    "_trees.diff": (
        "_nodes.classes",
        "_nodes.node",
        "_nodes.protocols",
        "_nodes.spec",
        "_trees.levels",
        "_trees.paths",
        "_trees.reasons",
        "_trees.texts",
    ),
    "_trees.remembered": ("_nodes.classes", "_nodes.freeze", "_nodes.statics", "_trees.levels", "_trees.reasons"),
    "_trees.entries": (
        "_nodes.classes",
        "_nodes.freeze",
        "_nodes.node",
        "_nodes.representation",
        "_nodes.spec",
        "_trees.paths",
        "errors",
    ),
    "_trees.places": ("_nodes.classes", "_trees.entries", "_trees.paths"),
    "_trees.recorder": ("_nodes.classes", "_nodes.representation", "_trees.entries", "_trees.paths", "_trees.places"),
    "_trees.selection": (
        "_nodes.representation",
        "_trees.entries",
        "_trees.paths",
        "_trees.places",
        "_trees.recorder",
        "errors",
    ),
    "_trees.update": ("_nodes.classes", "_nodes.representation", "_trees.paths", "_trees.places", "_trees.selection"),
    "_trees.drafts": (
        "_nodes.classes",
        "_nodes.module",
        "_nodes.node",
        "_nodes.spec",
        "_trees.entries",
        "_trees.paths",
        "errors",
    ),
    "_trees.specs": (
        "_nodes.classes",
        "_nodes.node",
        "_nodes.representation",
        "_nodes.spec",
        "_trees.entries",
        "_trees.paths",
        "_trees.selection",
    ),
    "_trees.batches": ("_nodes.classes", "_nodes.representation", "_trees.diff", "_trees.paths"),
    "_trees.inventory": (
        "_nodes.classes",
        "_nodes.fields",
        "_nodes.node",
        "_nodes.spec",
        "_trees.entries",
        "_trees.paths",
    ),
    "_trees.sizes": ("_trees.inventory", "_trees.paths"),
    "_trees.closeness": ("_trees.diff", "_trees.paths"),
    "train": ("_nodes.converted", "_nodes.fields", "_nodes.module", "_nodes.static_types", "_trees.specs"),
    "tables": (
        "_nodes.classes",
        "_nodes.representation",
        "_trees.entries",
        "_trees.inventory",
        "_trees.paths",
        "_trees.sizes",
    ),
    "transforms": (),
    "retrace": (),
    "retrace.signature": (
        "_nodes.classes",
        "_trees.diff",
        "_trees.levels",
        "_trees.reasons",
        "_trees.remembered",
        "_trees.texts",
    ),
    "retrace.history": (
        "_nodes.classes",
        "_nodes.reach",
        "_trees.diff",
        "_trees.levels",
        "_trees.reasons",
        "_trees.remembered",
        "retrace.signature",
    ),
    "retrace.remedies": ("_trees.diff", "_trees.levels", "_trees.reasons", "retrace.signature"),
    "retrace.report": ("_trees.diff", "retrace.history", "retrace.remedies", "retrace.signature"),
    "retrace.frames": ("_jax", "_nodes.reach", "retrace.signature"),
    "retrace.process": ("_nodes.classes", "retrace.history", "retrace.report"),
    "retrace.decorator": (
        "_nodes.classes",
        "_nodes.exact",
        "errors",
        "retrace.frames",
        "retrace.history",
        "retrace.process",
        "retrace.report",
        "retrace.signature",
    ),
    "retrace.watch": (
        "_trees.levels",
        "retrace.decorator",
        "retrace.frames",
        "retrace.history",
        "retrace.process",
        "retrace.report",
        "retrace.signature",
    ),
    "retrace.blocks": ("errors", "retrace.decorator", "retrace.history", "retrace.report", "retrace.watch"),
    "retrace.explanation": ("retrace.frames", "retrace.history", "retrace.report", "retrace.signature"),
    "retrace.hazards": (
        "_nodes.classes",
        "_nodes.exact",
        "_nodes.reach",
        "_nodes.refused",
        "_trees.levels",
        "_trees.paths",
        "_trees.reasons",
        "_trees.texts",
    ),
    "checkpoint.atomic": (),
    "checkpoint.digest": ("errors",),
    "checkpoint.leaves": ("_nodes.classes", "_nodes.freeze", "_nodes.representation", "errors"),
    "checkpoint.manifest": ("checkpoint.digest", "checkpoint.leaves", "errors"),
    "checkpoint.names": ("_nodes.classes", "_nodes.reach", "_nodes.representation", "_nodes.static_json", "errors"),
    "checkpoint.progress": (),
    "checkpoint.survey": (
        "_nodes.classes",
        "_nodes.node",
        "_nodes.spec",
        "_nodes.static_json",
        "_trees.paths",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.names",
        "errors",
    ),
    "checkpoint.compare": (
        "_nodes.classes",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.names",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint.changes": (
        "_nodes.classes",
        "_nodes.freeze",
        "checkpoint.compare",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.names",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint.restore": (
        "checkpoint.changes",
        "checkpoint.compare",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint.file": (
        "checkpoint.atomic",
        "checkpoint.digest",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.progress",
        "checkpoint.restore",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint.rebuild": (
        "_nodes.classes",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.names",
        "checkpoint.restore",
        "errors",
    ),
    "checkpoint.public": (
        "checkpoint.file",
        "checkpoint.manifest",
        "checkpoint.names",
        "checkpoint.rebuild",
        "checkpoint.restore",
        "checkpoint.survey",
    ),
    "checkpoint.steps": (
        "checkpoint.digest",
        "checkpoint.leaves",
        "checkpoint.manifest",
        "checkpoint.restore",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint.manager": (
        "checkpoint.atomic",
        "checkpoint.digest",
        "checkpoint.manifest",
        "checkpoint.restore",
        "checkpoint.steps",
        "checkpoint.survey",
        "errors",
    ),
    "checkpoint": ("checkpoint.compare", "checkpoint.manager", "checkpoint.manifest", "checkpoint.public"),
    "sharding.rules": (),
    "sharding.specs": (
        "_nodes.fields",
        "_nodes.node",
        "_nodes.representation",
        "_nodes.spec",
        "_trees.entries",
        "_trees.paths",
        "errors",
        "sharding.rules",
    ),
    "sharding.report": ("_nodes.representation", "_trees.paths", "sharding.rules", "sharding.specs"),
    "sharding.init": ("sharding.rules", "sharding.specs"),
    "sharding.constrain": ("_nodes.representation", "errors", "sharding.rules", "sharding.specs"),
    "sharding.describe": (
        "_nodes.classes",
        "_nodes.node",
        "_nodes.reach",
        "_nodes.representation",
        "_nodes.spec",
        "_trees.paths",
    ),
    "sharding.processes": ("errors", "sharding.describe"),
    "sharding": (
        "sharding.constrain",
        "sharding.init",
        "sharding.processes",
        "sharding.report",
        "sharding.rules",
        "sharding.specs",
    ),
    "testing.assertions": ("_trees.closeness",),
    "testing.plugin": ("errors", "retrace.blocks", "retrace.report"),
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
