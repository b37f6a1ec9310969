"""The manifest: readable, exact, checked as a whole, and never more trusted than the bytes it came from."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint import models
from tests.checkpoint.documents import changed, document_of, manifest_of, signed
from tests.checkpoint.models import STATICS, Dense, Net, Settings, Size, net, scaled, train_state
from treewright import Module, Static, static
from treewright.checkpoint import Branch, Leaf, Manifest, load, save
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.layout import contents
from treewright.checkpoint.manifest import DIGEST, TEXT, VERSION, from_json, from_metadata
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_it_holds_every_node_with_its_class_fields_kinds_and_statics(tmp_path: Path) -> None:
    content = document_of(net(), tmp_path)

    assert {key: content[key] for key in ("format", "version")} == {"format": "treewright.checkpoint", "version": 1}
    assert content["containers"][0] == {
        "kind": "node",
        "children": ["layers", "count"],
        "paths": [".layers", ".count"],
        "class": "tests.checkpoint.models:Net",
        "fields": {"layers": "child", "count": "buffer", "width": "static"},
        "statics": {"width": 3},
    }
    assert content["containers"][2] == {
        "kind": "node",
        "children": ["kernel", "bias"],
        "paths": [".kernel", ".bias"],
        "class": "tests.checkpoint.models:Dense",
        "fields": {"kernel": "child", "bias": "child", "activation": "static"},
        "statics": {"activation": ["name", "jax:nn.relu"]} | content["containers"][2]["statics"],
    }


def test_it_holds_the_form_of_every_leaf_and_its_digest(tmp_path: Path) -> None:
    content = document_of({"w": jnp.ones(2), "weak": jnp.asarray(1.0)}, tmp_path)

    assert content["forms"] == [
        {"kind": "array", "shape": [2], "dtype": "float32"},
        {"kind": "array", "shape": [], "dtype": "float32", "weak": True},
    ]
    assert content["digests"] == [digest_of(np.ones(size, np.float32).tobytes()) for size in (2, 1)]


def test_containers_and_forms_that_are_the_same_stand_in_it_once(tmp_path: Path) -> None:
    layers = [{"kernel": np.ones(3), "bias": np.zeros(1)} for _ in range(3)]
    content = document_of({"layers": layers, "kernel": np.ones(3)}, tmp_path)

    assert content["tree"] == [0, ~0, 1, 2, ~1, ~0, 2, ~1, ~0, 2, ~1, ~0]
    assert [container["children"] for container in content["containers"]] == [
        ["kernel", "layers"],
        ["0", "1", "2"],
        ["bias", "kernel"],
    ]


def test_containers_that_only_look_the_same_are_told_apart(tmp_path: Path) -> None:
    saved: Any = [*({key: 0} for key in (1, True, 1.0, "1")), *(Settings(value) for value in (1, True, 1.0, 0.0, -0.0))]
    save(tmp_path / "x", saved)

    assert repr(load(tmp_path / "x", modules=[models])) == repr(saved)
    assert jax.tree.structure(load(tmp_path / "x", like=saved)) == jax.tree.structure(saved)


def test_it_holds_the_implementation_of_a_key(tmp_path: Path) -> None:
    (leaf,) = manifest_of(jax.random.key(1, impl="rbg"), tmp_path).leaves

    assert (leaf.form.kind, leaf.form.key, leaf.form.shape, leaf.form.dtype) == ("key", "rbg", (4,), "uint32")


@pytest.mark.parametrize("name", STATICS)
def test_a_static_has_a_readable_form_and_comes_back_exactly(name: str, tmp_path: Path) -> None:
    value, form = STATICS[name]
    saved = Settings(value)

    assert manifest_of(saved, tmp_path).branches[0].statics["value"] == form
    back = load(tmp_path / "tree.safetensors", modules=["tests.checkpoint.models"])
    assert jax.tree.structure(back) == jax.tree.structure(saved)


def test_a_function_without_an_import_path_is_described_with_what_it_captured(tmp_path: Path) -> None:
    (branch,) = manifest_of(Settings(scaled(0.5)), tmp_path).branches

    assert branch.statics["value"] == ["described", "tests.checkpoint.models.scaled.<locals>.<lambda>(factor=0.5)"]


FACTOR = 0.5


def test_a_function_that_reads_data_is_described_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = lambda x: math.sin(x) * FACTOR
    texts: list[str] = []
    for value in (0.5, 0.25):
        monkeypatch.setitem(globals(), "FACTOR", value)
        texts.append(manifest_of(Settings(function), tmp_path).branches[0].statics["value"][1])

    assert [text.rpartition("(")[2] for text in texts] == ["FACTOR=0.5)", "FACTOR=0.25)"]


def test_a_description_holds_no_address_and_ends(tmp_path: Path) -> None:
    def recursive(n: int) -> int:
        return n and recursive(n - 1)

    def unbound() -> object:
        return later

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    odd, plain, many, named = Odd(), object(), tuple(range(1000)), print

    def function() -> object:
        return odd, plain, many, named, recursive, test_a_description_holds_no_address_and_ends

    kind, text = manifest_of(Settings(function), tmp_path).branches[0].statics["value"]
    assert kind == "described"
    assert "0x" not in text
    assert "Odd: ...," in text
    assert "98, 99, ...)" in text
    assert "recursive=" in text
    assert "named=print" in text
    assert manifest_of(Settings(unbound), tmp_path).branches[0].statics["value"][1].endswith("unbound()")
    later = 1


def test_a_class_may_declare_the_name_under_which_it_is_saved(tmp_path: Path) -> None:
    class Here(Module):
        __checkpoint_name__ = "lab.Here"
        x: Any
        kind: Any = static(default=None)

    assert manifest_of(Here(1.0), tmp_path).branches[0].cls == "lab.Here"
    assert manifest_of(Here(1.0, Here), tmp_path).branches[0].statics["kind"] == ["name", "lab.Here"]


@pytest.mark.parametrize("name", ["", 3])
def test_a_declared_name_that_is_no_name_is_refused(name: Any, tmp_path: Path) -> None:
    wrong: Any = type("Wrong", (Module,), {"__checkpoint_name__": name, "__annotations__": {"x": Any}})

    with pytest.raises(CheckpointError, match=r"Wrong.__checkpoint_name__ is .*, and must be a name such as 'mylib"):
        save(tmp_path / "x", wrong(1.0))


def test_containers_are_told_apart(tmp_path: Path) -> None:
    tree: Any = {"list": [1], "tuple": (1,), "none": None, "empty": {}, "named": Size(1, 2), "node": Static("x")}
    kinds = {branch.path: branch.kind for branch in manifest_of(tree, tmp_path).branches}

    assert kinds == {
        "": "dict",
        "['empty']": "dict",
        "['list']": "list",
        "['named']": "namedtuple",
        "['node']": "node",
        "['none']": "none",
        "['tuple']": "tuple",
    }


def test_writing_and_reading_gives_the_same_manifest(tmp_path: Path) -> None:
    manifest = manifest_of(train_state(), tmp_path)

    assert from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


# Versions


def test_a_newer_version_says_so(tmp_path: Path) -> None:
    content = {**document_of({"x": 1.0}, tmp_path), "version": VERSION + 1}

    newer = f"has format version {VERSION + 1}, and this Treewright reads up to {VERSION}"
    with pytest.raises(CheckpointError, match=newer) as caught:
        from_metadata(signed(json.dumps(content)))
    assert not isinstance(caught.value, CheckpointDamagedError)


def test_a_flipped_bit_in_the_version_is_damage_and_no_newer_version(tmp_path: Path) -> None:
    metadata = manifest_of({"x": 1.0}, tmp_path).to_metadata()
    newer = metadata[TEXT].replace(f'"version":{VERSION}', f'"version":{VERSION ^ 2}')

    with pytest.raises(CheckpointDamagedError, match=r"it has the digest .*was saved"):
        from_metadata({**metadata, TEXT: newer})


# What is not a manifest


NET_CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "format": (("format",), "other", "the format is 'other'"),
    "version 0": (("version",), 0, "there is no format version 0"),
    "version of another type": (("version",), True, "'version' is not of the type int"),
    "containers": (("containers",), {}, "'containers' is not of the type list"),
    "a container that is no object": (
        ("containers", 0),
        3,
        r"containers\[0\]: there should be an object, and there is 3",
    ),
    "children": (("containers", 0, "children"), [1, 2], "'children' holds more than strings"),
    "children of one name": (("containers", 0, "children"), ["a", "a"], "two of its children have one name"),
    "paths": (("containers", 0, "paths"), [".layers"], "or it has other paths than children"),
    "kind of container": (("containers", 0, "kind"), "set", "'set' is not a kind of container"),
    "kind of field": (("containers", 0, "fields", "width"), "other", "a field has an unknown kind"),
    "fields and statics": (("containers", 0, "fields", "width"), "child", "fields and statics disagree"),
    "keys": (("containers", 0, "keys"), [], "has other keys than children"),
    "class": (("containers", 0, "class"), None, "'class' is not of the type str"),
    "kind of leaf": (("forms", 0, "kind"), "str", r"forms\[0\]: no 'str' of 'float32' can be saved"),
    "dtype": (("forms", 0, "dtype"), "object", "of 'object' can be saved"),
    "negative shape": (("forms", 0, "shape"), [-1], "has an impossible shape"),
    "huge shape": (("forms", 0, "shape"), [2**64], "has an impossible shape"),
    "huge shape of nothing": (("forms", 0, "shape"), [0, 2**62], "has an impossible shape"),
    "long shape": (("forms", 0, "shape"), [1] * 65, "has an impossible shape"),
    "digest": (("digests", 0), "0", "'.layers.0..kernel' has the digest '0'"),
    "digest of a block": (("digests", 0), {"all": "0"}, "has the digest '0'"),
    "no digest": (("digests", 0), None, "there is no digest of"),
    "no blocks": (("digests", 0), {}, "there is no digest of"),
    "too few digests": (("digests",), [], "do not make one tree"),
    "place": (("digests", 0), {"0:1": "0" * 32}, "is not a block of an array of rank 2"),
    "place outside": (("digests", 0), {"0:9,0:1": "0" * 32}, "is not a block of an array of shape"),
    "place of words": (("digests", 0), {"a:b,0:1": "0" * 32}, "invalid literal"),
    "all of it and more": (("digests", 0), {"all": "0" * 32, "0:1,0:1": "0" * 32}, "do not cover it"),
    "part of it": (("digests", 0), {"0:1,0:1": "0" * 32}, "do not cover it"),
    "a number that is none": (("tree", 0), True, "holds more than numbers of containers and forms"),
    "a container that there is not": (("tree", 0), 9, "holds more than numbers of containers and forms"),
    "a form that there is not": (("tree", 3), -9, "holds more than numbers of containers and forms"),
    "nothing": (("tree",), [], "do not make one tree"),
    "children that are nowhere": (("containers", 1, "children"), ["0"], "other paths than children"),
}


@pytest.mark.parametrize("name", NET_CHANGES)
def test_an_entry_that_can_not_be_is_refused_even_with_a_digest_that_fits(name: str, tmp_path: Path) -> None:
    path, value, message = NET_CHANGES[name]

    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(changed(document_of(net(), tmp_path), path, value))


def test_two_leaves_of_one_name_are_refused(tmp_path: Path) -> None:
    document = document_of({"a": {"b": 1.0}, "c": 2.0}, tmp_path)

    with pytest.raises(CheckpointDamagedError, match="two leaves have one name"):
        from_json(changed(document, ("containers", 0, "children", 1), "a.b"))


def test_entries_that_only_count_as_one_tree_are_refused(tmp_path: Path) -> None:
    document = document_of({"a": 1.0, "b": 2.0}, tmp_path)

    with pytest.raises(CheckpointDamagedError, match="its entries do not make one tree"):
        from_json({**document, "tree": [-1, 0, -1]})


@pytest.mark.parametrize("entry", [None, 3, [], {}, {"data_offsets": []}, {"data_offsets": ["0"]}])
def test_an_entry_of_the_header_that_is_something_else_is_refused(entry: Any, tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": manifest_of({"a": np.zeros(2)}, tmp_path).to_metadata(), "a": entry})

    with pytest.raises(CheckpointDamagedError, match="its header and its manifest list different tensors"):
        contents(text.encode(), 16)


def test_a_tree_deeper_than_any_that_is_saved_is_refused(tmp_path: Path) -> None:
    document = document_of([1], tmp_path)

    with pytest.raises(CheckpointDamagedError, match="an entry lies 201 levels deep, and 200 is the limit"):
        from_json({**document, "tree": [0] * 300 + [-1]})


def test_the_metadata_of_a_manifest_is_read_as_well_as_its_document(tmp_path: Path) -> None:
    manifest = manifest_of(net(), tmp_path)

    assert json.loads(manifest.to_metadata()[TEXT]) == manifest.to_json()
    assert from_metadata(manifest.to_metadata()) == manifest
    assert from_metadata(signed(json.dumps(manifest.to_json(), indent=1))) == manifest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float32"', '"float16"'),
        ('"digests"', '"d1gests"'),
        ('"width":3', '"width":4'),
        ("layers", "1ayers"),
        (":", ": "),
        ("checkpoint", "check\ud83cpoint"),
    ],
)
def test_a_change_in_the_text_of_a_manifest_is_found(old: str, new: str, tmp_path: Path) -> None:
    metadata = manifest_of(net(), tmp_path).to_metadata()
    assert old in metadata[TEXT]

    with pytest.raises(CheckpointDamagedError, match=r"The manifest is damaged: it has the digest .*was saved"):
        from_metadata({**metadata, TEXT: metadata[TEXT].replace(old, new, 1)})


@pytest.mark.parametrize("key", [TEXT, DIGEST])
@pytest.mark.parametrize("value", [None, 3, ["{}"]])
def test_metadata_of_other_types_are_damage(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamagedError, match=rf"The manifest is damaged: '{key}' is not of the type str"):
        from_metadata({**manifest_of(net(), tmp_path).to_metadata(), key: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is made of more lists than it could have"),
        (f"1{'0' * 5000}", "is not JSON"),
        ('{"tree":' * 10_000 + "1" + "}" * 10_000, "damaged|not JSON"),
        ("null", "there should be an object, and there is None"),
        ("{}", "'format' is not of the type str"),
        ('{"format": NaN}', "is not JSON: NaN is not a number"),
        ('{"format": "\ud83c"}', "the format is "),
    ],
)
def test_a_text_that_is_no_manifest_is_an_error_and_no_crash(text: str, message: str) -> None:
    with pytest.raises(CheckpointDamagedError, match=message):
        from_metadata(signed(text))


def test_a_manifest_of_impossible_length_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treewright.checkpoint.manifest.LONGEST", 10)

    with pytest.raises(CheckpointDamagedError, match="The manifest has 11 characters, and none has more than 10"):
        from_metadata(signed(" " * 11))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["kind", "children", "paths", "class", "keys", "fields", "statics", "shape", "dtype", "weak", "ref"]
)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=3 * hypothesis.settings().max_examples)
def test_the_reader_takes_any_document_or_refuses_it(data: st.DataObject) -> None:
    form: Any = {"kind": "array", "shape": [2], "dtype": "int8"}
    container: Any = {"kind": "dict", "children": ["v", "w"], "paths": [".v", ".w"], "keys": ["v", "w"]}
    tree: list[Any] = [0, -1, -1]
    digests: list[Any] = ["0" * 32, {"0:1": "0" * 32, "1:2": "0" * 32}]
    content: Any = {
        "format": "treewright.checkpoint",
        "version": 1,
        "containers": [container],
        "forms": [form],
        "tree": tree,
        "digests": digests,
    }
    for _ in range(data.draw(st.integers(0, 3))):
        entry = data.draw(st.sampled_from([content, container, form, tree, digests]))
        if isinstance(entry, list):
            entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(JSON | st.integers(-2, 2))
        else:
            entry[data.draw(KEYS | st.sampled_from([*content]))] = data.draw(JSON)

    try:
        manifest = from_metadata(signed(json.dumps(content)))
    except CheckpointError:
        return
    assert isinstance(manifest, Manifest)
    assert from_metadata(manifest.to_metadata()) == manifest


@hypothesis.given(JSON)
def test_the_reader_refuses_what_is_no_manifest(document: Any) -> None:
    with pytest.raises(CheckpointDamagedError):
        from_json(document)


def test_entries_are_plain_data(tmp_path: Path) -> None:
    manifest = manifest_of(Net((Dense.of(1, 1),), jnp.float32(0)), tmp_path)

    assert {type(entry) for entry in (*manifest.branches, *manifest.leaves)} == {Branch, Leaf}
    assert [(leaf.name, str(leaf.form)) for leaf in manifest.leaves] == [
        ("layers.0.kernel", "float32[1,1] (array)"),
        ("layers.0.bias", "float32[1] (array)"),
        ("count", "float32[] (array)"),
    ]


# What would take too long, or too much


def nested(depth: int) -> Any:
    value: Any = ["tuple"]
    for _ in range(depth):
        value = ["tuple", value]
    return value


HOSTILE: dict[str, tuple[Any, str]] = {
    "a kind that is no string": ([[1], 2], r"a list is not a kind of static value that this version"),
    "an unknown kind": (["later", 1], r"'later' is not a kind"),
    "too few parts": (["node"], r".*has other parts than its kind"),
    "too many parts": (["bytes", "", ""], r".*has other parts than its kind"),
    "a part of another kind": (["enum", "a", 3], r".*has other parts than its kind"),
    "a size below nothing": (["FrozenArray", "int8", [-1], ""], r".*has other parts than its kind"),
    "a pair of three": (["FrozenMapping", [1, 2, 3]], r".*has other parts than its kind"),
    "an object": ({"a": 1}, r"a dict is not a kind of static value"),
    "deep": (nested(65), r"it goes more than 64 levels deep"),
    "very deep": (nested(300), r"it goes more than 64 levels deep"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_static_of_a_form_that_there_is_not_is_refused(name: str, tmp_path: Path) -> None:
    static_form, message = HOSTILE[name]
    document = document_of({"a": Settings(1)}, tmp_path)

    with pytest.raises(CheckpointDamagedError, match=rf"containers\[1\]: {message}"):
        from_json(changed(document, ("containers", 1, "statics", "value"), static_form))
    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(changed(document, ("containers", 0, "keys", 0), static_form))


def test_a_static_as_deep_as_may_be_comes_back_and_a_deeper_one_is_not_saved(tmp_path: Path) -> None:
    value: Any = ()
    for depth in range(201):
        if depth == 64:
            save(tmp_path / "x", Settings(value))
            assert load(tmp_path / "x", modules=[models]) == Settings(value)
            assert load(tmp_path / "x", like=Settings(value)) == Settings(value)
        if depth in {65, 200}:
            with pytest.raises(CheckpointError, match=r"\['a'\] has a static that no checkpoint holds"):
                save(tmp_path / "x", {"a": Settings(value)})
        value = (value,)


def test_children_that_would_get_one_name_are_not_saved(tmp_path: Path) -> None:
    tree: Any = OrderedDict([(1, {"a": 1.0}), ("1", {"b": 2.0})])

    with pytest.raises(CheckpointError, match="has children of one name, not to be told apart: 1, 1"):
        save(tmp_path / "x", tree)
    save(tmp_path / "x", {"x": 1})
    with pytest.raises(CheckpointError, match=r"\['x'\] has children of one name"):
        load(tmp_path / "x", like={"x": tree})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "int"}, r"of kind int has the shape \(2, 3\) and the dtype float32"),
        ({"kind": "numpy scalar"}, "of kind numpy scalar has the shape"),
        ({"kind": "key", "key": "threefry2x32"}, "of kind key has the shape"),
        ({"shape": [True, 6]}, "has an impossible shape"),
    ],
)
def test_a_leaf_of_a_kind_that_can_not_have_its_form_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    document = document_of({"w": np.ones((2, 3), np.float32)}, tmp_path)
    document["forms"][0].update(changes)

    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(document)


@pytest.mark.parametrize(("implementation", "width"), [("nobody's", 2), ("rbg", 2), ("threefry2x32", 3)])
def test_a_key_of_an_implementation_that_is_not_there_is_an_error_of_ours(
    implementation: str, width: int, tmp_path: Path
) -> None:
    from treewright.checkpoint.leaves import Form, Leaf, restored_leaves

    leaf = Leaf(("k",), "['k']", Form("key", (width,), "uint32", key=implementation))
    with pytest.raises(CheckpointError, match=r"\['k'\] is a key that this JAX does not have"):
        restored_leaves([np.zeros(width, np.uint32)], [leaf])
