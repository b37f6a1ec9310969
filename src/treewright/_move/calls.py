"""Calls rewritten, each function by what it takes here; and the commas between arguments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import libcst as cst

from treewright._move.libraries import Library
from treewright._move.source import Source, encoded


def name_of(target: str) -> cst.BaseExpression:
    """A name that an import has to bring, as `module:name`: `imports` writes it as the file needs it."""
    return cst.Name(encoded(target))


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """The argument `name=value`."""
    space = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(space, space))


def positional(value: cst.BaseExpression) -> cst.Arg:
    """An argument without a keyword."""
    return cst.Arg(value)


def separated(arguments: Iterable[cst.Arg], before: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Arguments with the commas, and the lines, of those that stood there before."""
    between = before[0].comma if len(before) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    end = before[-1].comma if before else cst.MaybeSentinel.DEFAULT
    every = list(arguments)
    return [arg.with_changes(comma=end if arg is every[-1] else between) for arg in every]


Rewritten = cst.BaseExpression | None
Rewrite = Callable[[Source, cst.Call, cst.Call, Library], Rewritten]


def _taken(call: cst.Call, names: Sequence[str]) -> dict[str, cst.BaseExpression] | None:
    """The values of arguments by name, whichever way they are given; None if there are others."""
    taken: dict[str, cst.BaseExpression] = {}
    for place, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else names[place] if place < len(names) else ""
        if arg.star or name not in names:
            return None
        taken[name] = arg.value
    return taken


def _tree_at(source: Source, _original: cst.Call, updated: cst.Call, _library: Library) -> Rewritten:
    """`tree_at(where, tree, value)` as `at(tree, where).set(value)`."""
    taken = _taken(updated, ("where", "pytree", "replace", "replace_fn", "is_leaf"))
    if taken is None or not {"where", "pytree"} <= set(taken) or not _leads_to_none(source, taken.get("is_leaf")):
        return None
    place = cst.Call(name_of("treewright:at"), [positional(taken["pytree"]), positional(taken["where"])])
    place = place.with_changes(args=separated(place.args, ()))
    if "replace" in taken:
        return cst.Call(cst.Attribute(place, cst.Name("set")), [positional(taken["replace"])])
    where = taken["where"]
    if (
        "replace_fn" in taken
        and isinstance(where, cst.Lambda)
        and isinstance(where.body, cst.Attribute | cst.Subscript)
    ):
        return cst.Call(cst.Attribute(place, cst.Name("apply")), [positional(taken["replace_fn"])])
    return None


def _leads_to_none(source: Source, is_leaf: cst.BaseExpression | None) -> bool:
    """Whether `is_leaf` is not given, or says `lambda x: x is None`: here a place may hold None."""
    words = [] if is_leaf is None else source.code(is_leaf).replace(":", " ").split()
    return is_leaf is None or (words[:1] == ["lambda"] and words[1:2] == words[2:3] and words[3:] == ["is", "None"])


def _edit(source: Source, original: cst.Call, updated: cst.Call, library: Library) -> Rewritten:
    """`copy_and_mutate(node)` as `edit(node)`."""
    taken = _taken(updated, ("obj", "validate"))
    if taken is None or "obj" not in taken:
        return None
    if source.code(taken.get("validate", cst.Name("True"))) != "False":
        source.find(
            original, "edit() does not compare shapes and dtypes with those before, as validate=True did", library.page
        )
    return cst.Call(name_of("treewright:edit"), [positional(taken["obj"])])


def _save(source: Source, original: cst.Call, updated: cst.Call, _library: Library) -> Rewritten:
    return _file(source, original, updated, "save")


def _load(source: Source, original: cst.Call, updated: cst.Call, _library: Library) -> Rewritten:
    return _file(source, original, updated, "load")


def _file(source: Source, original: cst.Call, updated: cst.Call, name: str) -> Rewritten:
    """A call that takes a path and a tree. Open files are not taken, nor filters."""
    taken = _taken(updated, ("path_or_file", "pytree" if name == "save" else "like"))
    if taken is None or len(taken) != 2 or source.code(taken["path_or_file"]) in source.opened:
        return None
    path, tree = taken.values() if "path_or_file" in list(taken)[:1] else reversed(taken.values())
    source.find(
        original,
        f"checkpoint.{name} writes and reads safetensors files; read those of before once with "
        "eqx.tree_deserialise_leaves, which takes nodes, and save them",
        "docs/checkpoints.md",
    )
    second = positional(tree) if name == "save" else keyword("like", tree)
    return cst.Call(name_of(f"treewright:checkpoint.{name}"), separated([positional(path), second], ()))


REWRITTEN: Mapping[str, Rewrite] = MappingProxyType({"tree_at": _tree_at, "edit": _edit, "save": _save, "load": _load})
