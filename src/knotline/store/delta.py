"""Applying stored operations to a tree: the other half of `change.py`."""

from __future__ import annotations

from typing import Any

from knotline.codec import exact
from knotline.errors import Damaged
from knotline.store.change import DICT, LIST, ROOT, TEXT
from knotline.store.seal import Rope

__all__ = ["apply"]


def apply(tree: Any, ops: list[list[Any]], ropes: dict[int, Rope], what: str) -> Any:
    """`tree`, changed in place where it can be; ropes of its long lists are kept true."""
    try:
        for op in ops:
            tree = _apply(tree, op, ropes)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise Damaged(what, why="its changes do not fit the state they are for") from error
    return tree


def _apply(tree: Any, op: list[Any], ropes: dict[int, Rope]) -> Any:
    kind = op[0]
    if kind == ROOT:
        return op[1]
    path: list[Any] = op[1]
    if kind == TEXT:
        holder = _walk(tree, path[:-1], ropes)
        text = holder[path[-1]]
        at, gone, come = op[2:]
        holder[path[-1]] = text[:at] + come + text[at + gone :]
        return tree
    target = _walk(tree, path, ropes)
    if kind == DICT:
        removed, pairs, order = op[2:]
        for key in removed:
            del target[key]
        for at in range(0, len(pairs), 2):
            target[pairs[at]] = pairs[at + 1]
        if order is not None:
            ordered = {key: target[key] for key in order}
            target.clear()
            target.update(ordered)
        return tree
    if kind == LIST:
        splices: list[Any] = op[2]
        for at, gone, items in reversed(splices):
            if at > len(target):
                raise IndexError(at)
            target[at : at + gone] = items
        rope = ropes.get(id(target))
        if rope is not None and rope.owner is target:
            rope.edit([(at, gone, len(items)) for at, gone, items in splices], ())
        return tree
    raise ValueError(kind)


def _walk(tree: Any, path: list[Any], ropes: dict[int, Rope]) -> Any:
    for key in path:
        below = tree[key]
        # Only now: what is no position in the list is none in its rope either.
        if ropes and exact(tree) is list:
            rope = ropes.get(id(tree))
            if rope is not None and rope.owner is tree:
                rope.edit((), (key,))
        tree = below
    return tree
