"""The manifest: readable, exact, checked as a whole, and never more trusted than the bytes it came from."""

from __future__ import annotations

import copy
import json
import math
import time
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint import models
from tests.checkpoint.models import STATICS, Dense, Net, Settings, Size, net, scaled, train_state
from treewright import Module, Static, freeze, static
from treewright.checkpoint import Branch, Leaf, Manifest, load, read_manifest, save
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.manifest import VERSION, from_json, from_text
from treewright.checkpoint.restore import restored_alone
from treewright.checkpoint.tree import ReadingCodec
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def manifest_of(tree: Any, folder: Path) -> Manifest:
    save(folder / "tree.safetensors", tree)
    return read_manifest(folder / "tree.safetensors")


def document_of(tree: Any, folder: Path) -> Any:
    return manifest_of(tree, folder).to_json()


def signed(content: Any) -> Any:
    """A document with the digest that its content has: what an attacker would write."""
    return {
        "manifest": content,
        "digest": digest_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()),
    }


def test_it_holds_every_node_with_its_class_fields_kinds_and_statics(tmp_path: Path) -> None:
    content = document_of(net(), tmp_path)["manifest"]

    assert {key: content[key] for key in ("format", "version")} == {"format": "treewright.checkpoint", "version": 2}
    assert content["nodes"][0] == {
        "steps": [],
        "path": "",
        "kind": "node",
        "children": ["layers", "count"],
        "class": "tests.checkpoint.models:Net",
        "fields": {"layers": "child", "count": "buffer", "width": "static"},
        "statics": {"width": 3},
    }
    assert content["nodes"][2] == {
        "steps": ["layers", "0"],
        "path": ".layers[0]",
        "kind": "node",
        "children": ["kernel", "bias"],
        "class": "tests.checkpoint.models:Dense",
        "fields": {"kernel": "child", "bias": "child", "activation": "static"},
        "statics": {"activation": ["name", "jax:nn.relu"]} | content["nodes"][2]["statics"],
    }


def test_it_holds_every_leaf_with_path_shape_dtype_and_digest(tmp_path: Path) -> None:
    leaves = document_of({"w": jnp.ones(2), "weak": jnp.asarray(1.0)}, tmp_path)["manifest"]["leaves"]

    assert leaves == [
        {
            "steps": ["w"],
            "path": "['w']",
            "kind": "array",
            "shape": [2],
            "dtype": "float32",
            "digest": {"all": digest_of(np.ones(2, np.float32).tobytes())},
        },
        {**leaves[1], "kind": "array", "shape": [], "weak": True},
    ]


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
    content = {**document_of({"x": 1.0}, tmp_path)["manifest"], "version": VERSION + 1}

    newer = f"has format version {VERSION + 1}, and this Treewright reads up to {VERSION}"
    with pytest.raises(CheckpointError, match=newer) as caught:
        from_json(signed(content))
    assert not isinstance(caught.value, CheckpointDamagedError)


def test_a_flipped_bit_in_the_version_is_damage_and_no_newer_version(tmp_path: Path) -> None:
    document = document_of({"x": 1.0}, tmp_path)
    document["manifest"]["version"] ^= 1

    with pytest.raises(CheckpointDamagedError, match=r"it has the digest .*was saved"):
        from_json(document)


# What is not a manifest


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with one entry changed, and a digest that fits."""
    content = copy.deepcopy(document["manifest"])
    inside = content
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return signed(content)


NET_CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "format": (("format",), "other", "the format is 'other'"),
    "version 0": (("version",), 0, "there is no format version 0"),
    "version of another type": (("version",), True, "'version' is not of the type int"),
    "nodes": (("nodes",), {}, "'nodes' is not of the type list"),
    "a node that is no object": (("nodes", 0), 3, "there should be an object, and there is 3"),
    "steps": (("nodes", 0, "steps"), [1], "'steps' holds more than strings"),
    "deep steps": (("leaves", 0, "steps"), ["a"] * 300, "an entry lies 300 levels deep"),
    "kind of container": (("nodes", 0, "kind"), "set", "'set' is not a kind of container"),
    "kind of field": (("nodes", 0, "fields", "width"), "other", "has an unknown kind"),
    "fields and statics": (("nodes", 0, "fields", "width"), "child", "disagree"),
    "keys": (("nodes", 0, "keys"), [], "has other keys than children"),
    "class": (("nodes", 0, "class"), None, "'class' is not of the type str"),
    "kind of leaf": (("leaves", 0, "kind"), "str", "is a 'str' of 'float32', and no such leaf"),
    "dtype": (("leaves", 0, "dtype"), "object", "of 'object', and no such leaf"),
    "negative shape": (("leaves", 0, "shape"), [-1], "has an impossible shape"),
    "huge shape": (("leaves", 0, "shape"), [2**64], "has an impossible shape"),
    "long shape": (("leaves", 0, "shape"), [1] * 65, "has an impossible shape"),
    "digest": (("leaves", 0, "digest"), {"all": "0"}, "has the digest '0'"),
    "no digest": (("leaves", 0, "digest"), {}, "do not cover it"),
    "place": (("leaves", 0, "digest"), {"0:1": "0" * 32}, "is not a block of an array of rank 2"),
    "place outside": (("leaves", 0, "digest"), {"0:9,0:1": "0" * 32}, "is not a block of an array of shape"),
    "place of words": (("leaves", 0, "digest"), {"a:b,0:1": "0" * 32}, "invalid literal"),
    "all of it and more": (("leaves", 0, "digest"), {"all": "0" * 32, "0:1,0:1": "0" * 32}, "do not cover it"),
    "part of it": (("leaves", 0, "digest"), {"0:1,0:1": "0" * 32}, "do not cover it"),
    "two of one place": (("leaves", 0, "steps"), ["layers", "0", "bias"], "do not make one tree"),
    "loose end": (("leaves", 0, "steps"), ["layers", "9"], "do not make one tree"),
}


@pytest.mark.parametrize("name", NET_CHANGES)
def test_an_entry_that_can_not_be_is_refused_even_with_a_digest_that_fits(name: str, tmp_path: Path) -> None:
    path, value, message = NET_CHANGES[name]

    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(changed(document_of(net(), tmp_path), path, value))


def test_two_leaves_of_one_name_are_refused(tmp_path: Path) -> None:
    document = document_of({"a": {"b": 1.0}, "c": 2.0}, tmp_path)
    document = changed(document, ("leaves", 1, "steps"), ["a.b"])
    document = changed(document, ("nodes", 0, "children", 1), "a.b")

    with pytest.raises(CheckpointDamagedError, match="two leaves have one name"):
        from_json(document)


def test_the_text_of_a_manifest_is_read_as_well_as_its_document(tmp_path: Path) -> None:
    manifest = manifest_of(net(), tmp_path)

    assert json.loads(manifest.to_text()) == manifest.to_json()
    assert from_text(manifest.to_text()) == manifest
    assert from_text(json.dumps(manifest.to_json(), indent=1)) == manifest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"float32"', '"float16"'),
        ('"all"', '"a1l"'),
        ('},"digest":"', '},"digest":"0'),
        ('"manifest"', '"manifes1"'),
        ("layers", "1ayers"),
    ],
)
def test_a_change_in_the_text_of_a_manifest_is_found(old: str, new: str, tmp_path: Path) -> None:
    text = manifest_of(net(), tmp_path).to_text()
    assert old in text

    with pytest.raises(CheckpointDamagedError, match="The manifest is damaged"):
        from_text(text.replace(old, new, 1))


def test_half_of_a_character_in_a_manifest_is_damage() -> None:
    text = Manifest((), ()).to_text().replace("checkpoint", "check\ud83cpoint")

    with pytest.raises(CheckpointDamagedError, match=r"The manifest is damaged: "):
        from_text(text)


def test_any_other_change_is_found_by_the_digest_of_the_manifest(tmp_path: Path) -> None:
    document = document_of(net(), tmp_path)
    document["manifest"]["nodes"][0]["statics"]["width"] = 4

    with pytest.raises(CheckpointDamagedError, match=r"The manifest is damaged: it has the digest .*was saved"):
        from_json(document)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is made of more lists than it could have"),
        (f"1{'0' * 5000}", "is not JSON"),
        ('{"manifest":' * 10_000 + "1" + "}" * 10_000, "damaged|not JSON"),
        ("null", "there should be an object, and there is None"),
        ("{}", "'manifest' is not of the type dict"),
        ('{"manifest": {}}', "'format' is not of the type str"),
        ('{"manifest": {"format": NaN}}', "is not JSON: NaN is not a number"),
    ],
)
def test_a_text_that_is_no_manifest_is_an_error_and_no_crash(text: str, message: str) -> None:
    with pytest.raises(CheckpointDamagedError, match=message):
        from_text(text)


def test_a_manifest_of_impossible_length_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treewright.checkpoint.manifest.LONGEST", 10)

    with pytest.raises(CheckpointDamagedError, match="The manifest has 11 characters, and none has more than 10"):
        from_text(" " * 11)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["steps", "path", "kind", "children", "class", "keys", "fields", "statics", "shape", "dtype", "weak", "digest"]
)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=300)
def test_the_reader_takes_any_document_or_refuses_it(data: st.DataObject) -> None:
    leaf: Any = {
        "steps": ["w"],
        "path": ".w",
        "kind": "array",
        "shape": [2],
        "dtype": "int8",
        "digest": {"all": "0" * 32},
    }
    node: Any = {"steps": [], "path": "", "kind": "dict", "children": ["w"], "keys": ["w"]}
    content: Any = {"format": "treewright.checkpoint", "version": 1, "nodes": [node], "leaves": [leaf]}
    for _ in range(data.draw(st.integers(0, 3))):
        entry = data.draw(st.sampled_from([content, node, leaf]))
        key = data.draw(KEYS | st.sampled_from(["nodes", "leaves", "version", "format"]))
        entry[key] = data.draw(JSON)

    try:
        manifest = from_json(signed(content))
    except CheckpointError:
        return
    assert isinstance(manifest, Manifest)
    assert from_json(manifest.to_json()) == manifest


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

    with pytest.raises(CheckpointDamagedError, match=rf"a static or key of \"\['a'\]\": {message}"):
        from_json(changed(document, ("nodes", 1, "statics", "value"), static_form))
    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(changed(document, ("nodes", 0, "keys", 0), static_form))


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


FORGED_INTS = [k * (2**61 - 1) for k in range(20_000)]


@pytest.mark.parametrize(
    "forged",
    [
        ["frozenset", *FORGED_INTS],
        ["FrozenMapping", *([number, 1] for number in FORGED_INTS)],
        ["tuple", ["frozenset", *(["Decimal", str(number)] for number in FORGED_INTS)]],
    ],
    ids=["set", "mapping", "decimals"],
)
def test_numbers_of_one_hash_do_not_take_quadratic_time(forged: Any, tmp_path: Path) -> None:
    document = document_of(Settings(1), tmp_path)
    manifest = from_json(changed(document, ("nodes", 0, "statics", "value"), forged))
    began = time.process_time()

    with pytest.raises(CheckpointError, match="of 20000 elements more than 64 have one hash: they were forged"):
        restored_alone(manifest, lambda _: iter(()), ReadingCodec([models]))
    assert time.process_time() - began < 5


def test_large_sets_and_mappings_come_back(tmp_path: Path) -> None:
    value = (frozenset(range(5000)), freeze({f"{i}": i for i in range(5000)}))
    save(tmp_path / "x", Settings(value))

    assert load(tmp_path / "x", modules=[models]) == Settings(value)


def test_a_document_of_small_lists_is_refused_before_it_takes_memory() -> None:
    import tracemalloc

    text = '{"manifest":[' + "[]," * 1_000_000 + "[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointDamagedError, match="is made of more lists than it could have"):
            from_text(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_manifest_of_the_shortest_entries_has_few_enough_lists(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    trees: list[Any] = [deep, [[] for _ in range(1000)], {f"{i}": {} for i in range(1000)}, [[[1]]] * 300]
    for tree in (*trees, Settings(freeze({i: i for i in range(10, 3000)}))):
        assert manifest_of(tree, tmp_path).version == VERSION


def test_children_that_are_nowhere_take_no_memory(tmp_path: Path) -> None:
    document = document_of([[1]], tmp_path)

    with pytest.raises(CheckpointDamagedError, match="its entries do not make one tree"):
        from_json(changed(document, ("nodes", 1, "children"), ["0"] * 100_000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "int"}, r"of kind int, has the shape \(2, 3\) and the dtype float32"),
        ({"kind": "numpy scalar"}, "of kind numpy scalar, has the shape"),
        ({"kind": "key", "key": "threefry2x32"}, "of kind key, has the shape"),
        ({"shape": [True, 6]}, "has an impossible shape"),
    ],
)
def test_a_leaf_of_a_kind_that_can_not_have_its_form_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    document = document_of({"w": np.ones((2, 3), np.float32)}, tmp_path)
    content = document["manifest"]
    content["leaves"][0].update(changes)

    with pytest.raises(CheckpointDamagedError, match=message):
        from_json(signed(content))


@pytest.mark.parametrize(("implementation", "width"), [("nobody's", 2), ("rbg", 2), ("threefry2x32", 3)])
def test_a_key_of_an_implementation_that_is_not_there_is_an_error_of_ours(
    implementation: str, width: int, tmp_path: Path
) -> None:
    from treewright.checkpoint.leaves import Form, Leaf, restored_leaves

    leaf = Leaf(("k",), "['k']", Form("key", (width,), "uint32", key=implementation))
    with pytest.raises(CheckpointError, match=r"\['k'\] is a key that this JAX does not have"):
        restored_leaves([np.zeros(width, np.uint32)], [leaf])
