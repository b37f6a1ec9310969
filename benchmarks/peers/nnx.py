"""flax.nnx, whose modules are changed in place."""

from typing import Any

from flax import nnx


class Norm(nnx.Module):
    def __init__(self, scale: Any, epsilon: float) -> None:
        self.scale, self.epsilon = nnx.Param(scale), epsilon


class Attention(nnx.Module):
    def __init__(self, query: Any, key: Any, value: Any, out: Any, heads: int) -> None:
        self.query, self.key, self.value, self.out = (nnx.Param(x) for x in (query, key, value, out))
        self.heads = heads


class MLP(nnx.Module):
    def __init__(self, gate: Any, up: Any, down: Any, activation: str) -> None:
        self.gate, self.up, self.down = nnx.Param(gate), nnx.Param(up), nnx.Param(down)
        self.activation = activation


class Block(nnx.Module):
    def __init__(self, norm1: Norm, attention: Attention, norm2: Norm, mlp: MLP) -> None:
        self.norm1, self.attention, self.norm2, self.mlp = norm1, attention, norm2, mlp


class Model(nnx.Module):
    def __init__(self, layers: list[Any]) -> None:
        self.layers = nnx.List(layers)
