"""One decorator that makes a plant, a controller or a policy: frozen, compared by value, and a JAX pytree."""

from __future__ import annotations

import dataclasses
from typing import TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass whose numeric fields are the leaves of a JAX pytree.

    `jax.grad` of a function of it returns another one, `jax.vmap` over a field is a sweep, `dataclasses.asdict` is the
    export. A field declared with `static()` is part of the tree's structure (a name, a choice), not a leaf.

    JAX rebuilds such objects with tracers in place of numbers, so a decorated class must not validate in
    `__post_init__`: it offers `check()`, called where values enter (a file, the command line).

    Args:
        cls: a class with annotated fields.

    Returns:
        The class itself, decorated.

    Example:
        >>> @pytree
        ... class Line:
        ...     slope: float
        >>> float(jax.grad(lambda line: line.slope**2)(Line(3.0)).slope)
        6.0
    """
    made = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(made)  # pyright: ignore[reportArgumentType]  # a dataclass since the line above
    jax.tree_util.register_dataclass(
        made,
        data_fields=[f.name for f in fields if not f.metadata.get("static")],
        meta_fields=[f.name for f in fields if f.metadata.get("static")],
    )
    return made


def static(default: object = dataclasses.MISSING) -> object:
    """A field of a `pytree` class that is a choice, not a number: part of the structure, never differentiated.

    Args:
        default: its default value; none if left out.

    Returns:
        A dataclass field.
    """
    return dataclasses.field(default=default, metadata={"static": True})
