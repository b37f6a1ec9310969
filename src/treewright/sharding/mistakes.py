"""Mistakes with shardings, each a function that returns the text for the user; here a "rule" is for mesh axes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treewright._base.jax_private import mesh_of_old_context, path_text
from treewright._base.text import short_text, text, with_article
from treewright._reports import first_lines, mesh_text
from treewright.sharding.text import ROOT, axes_text, folded

if TYPE_CHECKING:
    from treewright.sharding.specs import DeclaredLeaf, Fit, MeshRules

# Rules


def rules_are_no_mapping(rules: object) -> str:
    """A list of pairs, as flax has it, gives no rule for a name."""
    return f'rules= must be a mapping from names to mesh axes, such as {{"mlp": "tensor"}}, got {rules!r}.'


def wrong_rule(name: object, rule: object) -> str:
    """A `PartitionSpec` names the axes of an array, a rule those of a mesh."""
    return (
        f"The rule for {name!r} is {rule!r}, but must be a mesh axis, a tuple of mesh axes, or None for an axis that "
        f"is not split."
    )


def misspelt_axes(rules: "MeshRules") -> str | None:
    """An axis that a mesh lacks is dropped, so arrays would stay whole."""
    misspelt = [f"{axis!r} (did you mean {close!r}?)" for axis, close in rules.guesses.items() if close]
    if not misspelt:
        return None
    return (
        f"Unknown mesh ax{'es' if len(misspelt) > 1 else 'is'} {', '.join(misspelt)}: the mesh has "
        f"{axes_text(rules.sizes)}. Axes that a mesh lacks are dropped, which would leave arrays whole on every "
        f"device. If it is an axis of a different mesh, choose a less similar name."
    )


def wrong_setting(setting: object) -> str:
    """A misspelt setting would be taken for another."""
    return (
        f'on_misfit= must be "error", "replicate" or "replicate_rank", or a mapping from places in the tree to these, '
        f"got {setting!r}."
    )


def names_of_node(path: Any, node: Any, names: object) -> str:
    """Names are for arrays, so those of a node would do nothing."""
    name = type(node).__qualname__
    return (
        f"{path_text(path) or ROOT} is {with_article(name)}, but its field declares sharding={names!r}, which would be "
        f"ignored: names are for arrays. Declare them on the fields of {name}, and remove them here."
    )


def rules_that_do_not_fit(wrong: "list[tuple[DeclaredLeaf, Fit]]", count: int) -> str:
    """JAX would name the axis of an array, without its place in the tree or the rule."""
    shown: list[str] = []
    rows = [(path_text(leaf.path), (text(leaf.value), fit.unknown or fit.misfits)) for leaf, fit in wrong]
    for path, members in folded(rows):
        array, problems = rows[members[0]][1]
        shown.append(f"{path or ROOT}, {array}: {'; '.join(dict.fromkeys(problems))}")
    lines = [f"The rules don't fit {len(wrong)} of {count} leaves:", *(f"  {line}" for line in first_lines(shown))]
    if any(fit.unknown for _, fit in wrong):
        return "\n".join([*lines, "Add a rule for each name; None is the rule for an axis that is not split."])
    if all(fit.wrong_rank and len(leaf.shape) > len(leaf.names or ()) for leaf, fit in wrong):
        lines.append('If this is part of a stack, name its leading axes, as in stack="layers".')
    setting = "replicate_rank" if all(fit.wrong_rank for _, fit in wrong) else "replicate"
    return "\n".join([*lines, f'With on_misfit="{setting}", such an axis or array is whole on every device.'])


def no_name_used(rules: "MeshRules", known: Iterable[str]) -> str | None:
    """Without names on its fields, the whole state is on every device."""
    if not rules.none_used:
        return None
    return (
        f"No field of the tree has a name that the rules split ({', '.join(map(repr, rules.unused))}), so every device "
        f"stores whole arrays. The names in the tree are {', '.join(sorted(known)) or 'none'}. Name the axes of its "
        f"fields: kernel: jax.Array = field(sharding=({rules.unused[0]!r}, ...))."
    )


def no_axis_present(rules: "MeshRules", known: Iterable[str]) -> str | None:  # noqa: ARG001  as for no_name_used
    """With the axes of another mesh, the whole state is on every device."""
    if not (rules.all_absent and rules.devices > 1):
        return None
    return (
        f"The mesh has none of the axes in the rules ({', '.join(rules.absent)}), so every device stores whole arrays. "
        f"The mesh has {axes_text(rules.sizes)}. Use its axes in the rules, or None for an array axis that is not "
        f"split."
    )


WHOLE = (no_name_used, no_axis_present)  # asked about a whole state


# Constraints


def not_one_array(x: object) -> str:
    """The names of a tree are on its fields."""
    return (
        f"constrain needs one array, got {short_text(x)}. For a tree, call constrain_tree, which uses the names of its "
        f"fields."
    )


def old_mesh_context(mesh: Any) -> str | None:
    """JAX's old way to set a mesh does nothing here."""
    old = mesh_of_old_context()
    if not mesh.empty or old is None:
        return None
    return (
        f"`with mesh:` sets {mesh_text(old)}, but has no effect on constrain, constrain_tree and out_sharding, so "
        f"nothing is split. Write `with jax.set_mesh(mesh):`."
    )


def no_name(caller: str, name: object) -> str:
    """A `PartitionSpec` would be the name of one axis."""
    return (
        f"{caller}: {name!r} is not a name. Pass a name, a tuple of mesh axes, or None for each axis, such as "
        f'"data", None.'
    )


def names_without_rules(caller: str, mesh: Any, absent: set[str]) -> str | None:
    """Names of the model that reach no rules are axes that no mesh has."""
    if mesh.size <= 1:
        return None
    return (
        f"{caller}: without rules, names are mesh axes, but {mesh_text(mesh)} does not have "
        f"{', '.join(sorted(absent))}, so nothing is split over it. Call it inside "
        f"`with use_rules({{{min(absent)!r}: ...}}):`, or add such an axis of length 1 to the mesh."
    )


def constraint_without_devices(mesh: Any) -> str:
    """JAX says that only an AbstractMesh exists."""
    return (
        f"The current mesh, {mesh_text(mesh)}, is abstract, without devices for arrays. Trace the function under it, "
        f"as jax.eval_shape does, or set a mesh of devices: jax.set_mesh(jax.make_mesh(...))."
    )


# Initialisation


def init_without_devices(mesh: Any) -> str:
    """Arrays need devices, and a plan does not."""
    return (
        f"sharded_init creates arrays, but {mesh_text(mesh)} is abstract, without devices to store them. Call "
        f"abstract_state to plan for it, or pass a mesh of devices: mesh=jax.make_mesh(...)."
    )


def tree_in_place_of_function(caller: str, tree: Any) -> str:
    """The arrays exist already, on one device."""
    return (
        f"{caller} needs the function that creates a tree, but got {with_article(type(tree).__qualname__)}. To split "
        f"existing arrays: jax.device_put(tree, shardings(tree, mesh, rules))."
    )


def inside_transformation(caller: str) -> str:
    """The mesh of a trace can't be changed."""
    return (
        f"{caller} sets a mesh, so it can't be called inside jit, grad, vmap or eval_shape. Call it outside. Inside, "
        f"call the function itself, and pass the shardings of the result to jit: out_shardings=shardings(...)."
    )
