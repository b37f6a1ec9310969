"""The architecture: which module may import which, and that no other import is there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.test_house import SOURCE, hold, modules_in, tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def layers(text: str) -> dict[str, tuple[str, ...]]:
    """The modules in a list of `module: what it imports`, whose longer lines go on indented."""
    lines = text.replace("\n    ", " ").strip().splitlines()
    return {
        name: tuple(filter(None, imports.strip().split(", ")))
        for name, _, imports in (line.partition(":") for line in lines)
    }


# From the ground up: each module and all it may import. A module imports only what stands above its own line.
LAYERS = layers("""
errors
_collector
_jax
_jax_cache: _jax
_jax_refs: _jax
_values
_values.reach: _jax
_values.text: _jax_refs, _values.reach
_values.portable: _values.reach, _values.text
_values.plain: _jax_refs, _values.reach, _values.text
_values.exact: _jax, _jax_refs, _values.plain, _values.reach, _values.text
_values.freeze: _values.exact, _values.plain, _values.reach
_values.snapshot: _jax, _values.exact, _values.freeze, _values.plain, _values.reach, _values.text
_values.why: _jax, _values.exact, _values.plain, _values.reach, _values.snapshot, _values.text
_nodes
_nodes.annotations: _values.reach, errors
_nodes.children: _jax, _nodes.annotations, _values.reach, _values.text, errors
_nodes.fields: _values.reach, _values.text, errors
_nodes.converters: _jax_refs, _nodes.annotations, _nodes.fields, _values.reach, _values.text, errors
_nodes.statics: _nodes.annotations, _values.exact, _values.plain, _values.reach, _values.text, errors
_nodes.spec: _jax, _nodes.annotations, _nodes.children, _nodes.converters, _nodes.fields, _nodes.statics,
    _values.reach, errors
_nodes.json_kinds: _jax, _values.freeze, _values.reach, errors
_nodes.as_json: _nodes.json_kinds, _nodes.statics, _values.reach, _values.text, errors
_nodes.node: _jax, _jax_refs, _nodes.fields, _nodes.spec, _nodes.statics, _values.reach, _values.text, errors
_nodes.dunders: _jax, _jax_refs, _nodes.node, _nodes.spec, _nodes.statics, _values.exact, _values.plain,
    _values.reach, _values.text, errors
_nodes.init: _nodes.annotations, _nodes.children, _nodes.node, _nodes.spec, errors
_nodes.others: _nodes.as_json, _nodes.node, _nodes.spec, _nodes.statics, _values.reach, errors
_nodes.refusals: _jax_refs, _nodes.annotations, _nodes.converters, _nodes.fields, _nodes.node, _nodes.spec,
    _values.freeze, _values.reach, _values.text, errors
_nodes.foreign: _jax, _nodes.annotations, _nodes.dunders, _nodes.fields, _nodes.node, _nodes.spec, _values.reach,
    errors
_nodes.make_class: _nodes.annotations, _nodes.dunders, _nodes.foreign, _nodes.init, _nodes.node, _nodes.others,
    _nodes.refusals, _nodes.spec, _values.reach, errors
_nodes.dataclass: _jax, _nodes.fields, _nodes.foreign, _nodes.make_class, _nodes.node, _nodes.others, _nodes.spec,
    _nodes.statics, _values.reach, _values.text, errors
_nodes.module: _jax, _nodes.annotations, _nodes.children, _nodes.dataclass, _nodes.dunders, _nodes.fields,
    _nodes.foreign, _nodes.make_class, _nodes.node, _nodes.others, _nodes.refusals, _nodes.spec, _nodes.statics,
    _values.exact, _values.plain, _values.reach, _values.text
_trees
_trees.level: _jax, _jax_refs, _nodes.fields, _nodes.node, _nodes.spec, _nodes.statics, _values.freeze,
    _values.reach, _values.text
_trees.at: _jax, _trees.level, _values.reach, _values.text, errors
_trees.diff: _jax, _jax_refs, _nodes.dunders, _nodes.node, _nodes.spec, _trees.level, _values.reach, _values.text,
    _values.why
_trees.edit: _jax, _nodes.module, _nodes.node, _nodes.spec, _trees.level, _values.reach, errors
_trees.masks: _jax, _nodes.node, _nodes.spec, _trees.at, _trees.diff, _trees.level, _values.reach, _values.text
_trees.refs: _jax, _jax_refs, _nodes.converters, _trees.diff, _trees.masks, _values.reach, _values.text, errors
_trees.sizes: _jax, _jax_refs, _nodes.fields, _nodes.node, _nodes.spec, _trees.at, _trees.level, _values.reach
_trees.stacking: _jax, _jax_refs, _trees.diff, _trees.level, _values.reach, _values.text
_trees.summary: _jax, _jax_refs, _nodes.node, _trees.level, _trees.sizes, _values.reach, _values.text
_pickled: _nodes.converters, _nodes.dunders, _nodes.init, _nodes.make_class, _nodes.module, _nodes.spec,
    _nodes.statics, _values.freeze
train: _jax, _nodes.converters, _nodes.fields, _nodes.module, _nodes.node, _nodes.spec, _trees.diff, _trees.masks,
    _trees.refs, _values.text, errors
adopted: _jax, _jax_refs, _nodes.fields, _nodes.module, _trees.level, _trees.masks, _values.freeze, _values.reach,
    _values.text, errors
_loop: _jax, _jax_refs, _trees.diff, _trees.sizes, _values.reach, _values.text, errors
typed
retrace
retrace.call: _jax, _jax_refs, _loop, _nodes.node, _nodes.statics, _trees.diff, _trees.level, _values.reach,
    _values.snapshot, _values.text, _values.why
retrace.check_statics: _jax, _nodes.fields, _trees.level, _values.exact, _values.plain, _values.reach, _values.text,
    _values.why
retrace.history: _jax, _trees.diff, _values.reach, _values.snapshot, _values.why, retrace.call
retrace.remedies: _jax, _jax_refs, _trees.diff, _trees.level, _values.reach, _values.snapshot, _values.why
retrace.report: _jax, _trees.diff, _values.reach, _values.text, errors, retrace.call, retrace.history,
    retrace.remedies
retrace.traced: _jax, _values.exact, _values.reach, _values.text, errors, retrace.call, retrace.history,
    retrace.report
retrace.watch: _jax, _values.reach, errors, retrace.call, retrace.history, retrace.report, retrace.traced
retrace.explain: _jax, _values.text, errors, retrace.call, retrace.history, retrace.report, retrace.traced,
    retrace.watch
retrace.record
retrace.recorder: _jax, _jax_cache, _trees.diff, _values.text, retrace.call, retrace.history, retrace.record,
    retrace.remedies, retrace.report, retrace.watch
retrace.inject: retrace.record, retrace.recorder
retrace.tally
retrace.cache: retrace.record, retrace.tally
retrace.words: retrace.cache, retrace.tally
retrace.page: retrace.cache, retrace.tally, retrace.words
retrace.command: retrace.cache, retrace.inject, retrace.page, retrace.record, retrace.tally, retrace.words
checkpoint.atomic: _values.text, errors
checkpoint.leaves: _jax, _jax_refs, _values.freeze, _values.reach, _values.text, errors
_jax_processes: _jax
checkpoint.digests: _jax, _jax_processes, checkpoint.leaves, errors
checkpoint.manifest: _nodes.as_json, _nodes.json_kinds, _values.reach, checkpoint.digests, checkpoint.leaves, errors
checkpoint.tree: _jax_refs, _nodes.as_json, _nodes.json_kinds, _nodes.node, _nodes.spec, _trees.at, _trees.level,
    _values.freeze, _values.portable, _values.reach, _values.text, checkpoint.leaves, checkpoint.manifest, errors
checkpoint.compare: _nodes.as_json, _nodes.json_kinds, _values.freeze, _values.reach, _values.text,
    checkpoint.leaves, checkpoint.manifest, checkpoint.tree, errors
checkpoint.restore: _values.reach, _values.text, checkpoint.compare, checkpoint.leaves, checkpoint.manifest,
    checkpoint.tree, errors
checkpoint.layout: checkpoint.leaves, checkpoint.manifest, errors
checkpoint.file: _jax, checkpoint.atomic, checkpoint.digests, checkpoint.layout, checkpoint.leaves,
    checkpoint.manifest, checkpoint.restore, checkpoint.tree, errors
checkpoint.steps: _jax, _jax_processes, _values.reach, checkpoint.atomic, checkpoint.digests, checkpoint.leaves,
    checkpoint.manifest, checkpoint.restore, checkpoint.tree, errors
checkpoint.foreign: _values.text, checkpoint.atomic, checkpoint.leaves, checkpoint.steps, checkpoint.tree, errors
checkpoint.api: _collector, _values.text, checkpoint.atomic, checkpoint.file, checkpoint.foreign,
    checkpoint.manifest, checkpoint.restore, checkpoint.tree
checkpoint.ending: _jax, _jax_processes, _values.reach
checkpoint.retention: errors
checkpoint.manager: _jax, _values.reach, _values.text, checkpoint.atomic, checkpoint.digests, checkpoint.ending,
    checkpoint.manifest, checkpoint.restore, checkpoint.retention, checkpoint.steps, errors
checkpoint.command: _values.text, checkpoint.atomic, checkpoint.compare, checkpoint.digests, checkpoint.file,
    checkpoint.leaves, checkpoint.manifest, checkpoint.restore, checkpoint.steps, errors
sharding.folding
sharding.hlo: _values.reach
sharding.specs: _jax, _nodes.fields, _nodes.node, _nodes.spec, _trees.level, _trees.masks, _values.text, errors,
    sharding.folding
sharding.constrain: _jax, _jax_processes, _jax_refs, _values.freeze, _values.text, errors, sharding.specs
sharding.processes: _jax, _jax_processes, _nodes.spec, _trees.level, _values.portable, _values.reach, _values.text,
    errors, sharding.folding
sharding.init: _collector, _jax, _jax_processes, _jax_refs, _trees.level, _values.portable, _values.reach,
    _values.text, errors, sharding.hlo, sharding.processes, sharding.specs
sharding.report: _jax, _trees.sizes, _values.reach, _values.text, sharding.folding, sharding.specs
sharding.program: _jax, _jax_processes, _trees.sizes, _values.reach, _values.text, sharding.folding, sharding.hlo,
    sharding.report
testing.plugin: errors, retrace.explain, retrace.report
checkpoint: checkpoint.api, checkpoint.compare, checkpoint.ending, checkpoint.leaves, checkpoint.manager,
    checkpoint.manifest
sharding: sharding.constrain, sharding.hlo, sharding.init, sharding.processes, sharding.program, sharding.report,
    sharding.specs
testing: _trees.diff
__main__: _values.text
_move.libraries
_move.source: _move.libraries
_move.classes: _move.libraries, _move.source
_move.calls: _move.libraries, _move.source
_move.statements: _move.calls, _move.classes, _move.libraries, _move.source
_move.findings: _move.classes, _move.libraries, _move.source
_move.imports: _move.calls, _move.source
_move.rewrite: _move.calls, _move.classes, _move.findings, _move.imports, _move.libraries, _move.source,
    _move.statements
_move.command: _move.libraries, _move.rewrite, _move.source, checkpoint.atomic, errors
_move
""")


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
