"""Calls rewritten, each function by what it takes here; and the commas and comments between arguments."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import libcst as cst
from libcst import matchers

from treewright.move.libraries import Library
from treewright.move.source import Source, encoded, keyword_of

Listed = TypeVar("Listed", cst.Arg, cst.ImportAlias)


def name_of(target: str) -> cst.BaseExpression:
    """A name that an import has to bring, as `module:name`: `imports` writes it as the file needs it."""
    return cst.Name(encoded(target))


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """The argument `name=value`."""
    space = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(space, space))


def separated(listed: Sequence[Listed], before: Sequence[Listed]) -> list[Listed]:
    """Arguments, or imported names, with the commas, and the lines, of those that stood there before."""
    between = before[0].comma if len(before) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    end = before[-1].comma if before else cst.MaybeSentinel.DEFAULT
    return [each.with_changes(comma=end if each is listed[-1] else between) for each in listed]


def with_comments(made: cst.Call, before: cst.Call) -> cst.Call:
    """A call with the comments that stood between the arguments of the one before, all above its first argument."""
    bare = before.with_changes(func=cst.Name("f"), args=[arg.with_changes(value=cst.Name("x")) for arg in before.args])
    indent = cst.SimpleWhitespace("    ")
    comments = [each for each in matchers.findall(bare, matchers.Comment()) if isinstance(each, cst.Comment)]
    if not comments:
        return made
    args, below = separated(made.args, ()), cst.ParenthesizedWhitespace(indent=True)
    args[-1:] = [last.with_changes(whitespace_after_arg=below) for last in args[-1:]]
    lines = [cst.EmptyLine(whitespace=indent, comment=each) for each in comments]
    above = below.with_changes(empty_lines=lines, last_line=indent if args else below.last_line)
    return made.with_changes(whitespace_before_args=above, args=args)


Rewrite = Callable[[Source, cst.Call, cst.Call, Library], cst.Call | None]


def _taken(call: cst.Call, names: Sequence[str]) -> dict[str, cst.BaseExpression] | None:
    """The values of arguments by name, whichever way they are given; None if there are others."""
    taken: dict[str, cst.BaseExpression] = {}
    for place, arg in enumerate(call.args):
        name = keyword_of(arg) or (names[place] if place < len(names) else "")
        if arg.star or name not in names:
            return None
        taken[name] = arg.value
    return taken


def _tree_at(source: Source, _original: cst.Call, updated: cst.Call, _library: Library) -> cst.Call | None:
    """`tree_at(where, tree, value)` as `at(tree, where).set(value)`."""
    taken = _taken(updated, ("where", "pytree", "replace", "replace_fn", "is_leaf"))
    if taken is None or not {"where", "pytree"} <= set(taken) or not _leads_to_none(source, taken.get("is_leaf")):
        return None
    where = taken["where"]
    one_place = isinstance(where, cst.Lambda) and isinstance(where.body, cst.Attribute | cst.Subscript)
    method = "set" if "replace" in taken else "apply" if "replace_fn" in taken and one_place else None
    if method is None:
        return None
    place = cst.Call(name_of("treewright:at"), separated([cst.Arg(taken["pytree"]), cst.Arg(where)], ()))
    value = taken["replace" if method == "set" else "replace_fn"]
    return cst.Call(cst.Attribute(place, cst.Name(method)), [cst.Arg(value)])


def _leads_to_none(source: Source, is_leaf: cst.BaseExpression | None) -> bool:
    """Whether `is_leaf` is not given, or says `lambda x: x is None`: here a place may hold None."""
    words = [] if is_leaf is None else source.code(is_leaf).replace(":", " ").split()
    return is_leaf is None or (words[:1] == ["lambda"] and words[1:2] == words[2:3] and words[3:] == ["is", "None"])


def _edit(source: Source, original: cst.Call, updated: cst.Call, library: Library) -> cst.Call | None:
    """`copy_and_mutate(node)` as `edit(node)`."""
    taken = _taken(updated, ("obj", "validate"))
    if taken is None or "obj" not in taken:
        return None
    if source.code(taken.get("validate", cst.Name("True"))) != "False":
        text = "edit() does not compare shapes and dtypes with those before, as validate=True did"
        source.find(original, text, library.page)
    return cst.Call(name_of("treewright:edit"), [cst.Arg(taken["obj"])])


def _file(name: str, source: Source, original: cst.Call, updated: cst.Call, _library: Library) -> cst.Call | None:
    """A call that takes a path and a tree. Open files are not taken, nor filters."""
    tree = "pytree" if name == "save" else "like"
    taken = _taken(updated, ("path_or_file", tree))
    if taken is None or len(taken) != 2 or source.code(taken["path_or_file"]) in source.opened:
        return None
    text = (
        f"checkpoint.{name} writes and reads safetensors files; read those of before once with "
        "eqx.tree_deserialise_leaves, which takes nodes, and save them"
    )
    source.find(original, text, "docs/checkpoints.md")
    second = cst.Arg(taken[tree]) if name == "save" else keyword("like", taken[tree])
    args = separated([cst.Arg(taken["path_or_file"]), second], ())
    return cst.Call(name_of(f"treewright:checkpoint.{name}"), args)


REWRITTEN: Mapping[str, Rewrite] = MappingProxyType(
    {"tree_at": _tree_at, "edit": _edit, **{name: functools.partial(_file, name) for name in ("save", "load")}}
)
