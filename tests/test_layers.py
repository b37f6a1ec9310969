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
    "_nodes": (),
    "_nodes.classes": (),
    "_nodes.imports": (),
    "_nodes.converted": ("_nodes.classes", "errors"),
    "_nodes.representation": ("_nodes.classes",),
    "_nodes.exact": ("_nodes.classes", "_nodes.representation"),
    "_nodes.freeze": ("_nodes.classes", "_nodes.exact"),
    "_nodes.static_types": (),
    "_nodes.fields": ("_nodes.static_types",),
    "_nodes.statics": ("_nodes.classes", "_nodes.exact", "_nodes.representation", "errors"),
    "_nodes.spec": ("_nodes.converted", "_nodes.fields", "_nodes.statics", "errors"),
    "_nodes.export": ("_nodes.classes", "_nodes.freeze", "_nodes.spec", "_nodes.statics", "errors"),
    "_nodes.node": ("_nodes.classes", "_nodes.spec", "_nodes.statics", "errors"),
    "_nodes.state_dicts": ("_nodes.classes", "_nodes.imports", "_nodes.node", "_nodes.spec"),
    "_nodes.init": ("_nodes.classes", "_nodes.node", "_nodes.spec", "errors"),
    "_nodes.methods": ("_nodes.classes", "_nodes.exact", "_nodes.export", "_nodes.node", "_nodes.state_dicts"),
    "_nodes.protocols": (
        "_nodes.classes",
        "_nodes.exact",
        "_nodes.node",
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
    "train": ("_nodes.converted", "_nodes.fields", "_nodes.module", "_nodes.static_types"),
    "transforms": (),
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
