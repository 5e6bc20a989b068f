"""Heaps of request ids in rows of the id table, their keys in the same row of the key table. Keys stand still while they are in.

Smaller key first, ties by number. Several heaps may share a row, each from its own place on. Every entry has up to four
children, whose keys lie side by side: half as deep as with two, and a long queue is read in half as many cache lines.
"""

from __future__ import annotations

from headway.models.compiled import compiled, compiled_inline

WIDTH = 4
"""Children of an entry."""


@compiled_inline
def before(keys, ids, row, a, b):
    """Whether entry a goes before b: smaller key, ties by number.

    Args:
        keys: key table [s].
        ids: id table.
        row: of both.
        a: column.
        b: column.

    Returns:
        True if so.
    """
    if keys[row, a] != keys[row, b]:
        return keys[row, a] < keys[row, b]
    return ids[row, a] < ids[row, b]


@compiled_inline
def swap(keys, ids, row, a, b):
    """Exchange two entries.

    Args:
        keys: key table [s].
        ids: id table.
        row: of both.
        a: column.
        b: column.
    """
    keys[row, a], keys[row, b] = keys[row, b], keys[row, a]
    ids[row, a], ids[row, b] = ids[row, b], ids[row, a]


@compiled
def push(keys, ids, row, at, size, key, i):
    """Put a request into a heap.

    Args:
        keys: key table, changed in place [s].
        ids: id table, changed in place.
        row: of the heap.
        at: column where the heap begins.
        size: entries before.
        key: of the request [s].
        i: request id.
    """
    k = size
    keys[row, at + k], ids[row, at + k] = key, i
    while k > 0:
        parent = (k - 1) // WIDTH
        if not before(keys, ids, row, at + k, at + parent):
            return
        swap(keys, ids, row, at + k, at + parent)
        k = parent


@compiled
def sink(keys, ids, row, at, k, size):
    """Let an entry sink to where it belongs.

    Args:
        keys: key table, changed in place [s].
        ids: id table, changed in place.
        row: of the heap.
        at: column where the heap begins.
        k: place of the entry in the heap.
        size: entries.
    """
    while True:
        least = k
        for child in range(WIDTH * k + 1, min(WIDTH * k + WIDTH + 1, size)):
            if before(keys, ids, row, at + child, at + least):
                least = child
        if least == k:
            return
        swap(keys, ids, row, at + k, at + least)
        k = least


@compiled
def heapify(keys, ids, row, at, size):
    """Make a heap of the entries placed so far.

    Args:
        keys: key table, changed in place [s].
        ids: id table, changed in place.
        row: of the heap.
        at: column where the heap begins.
        size: entries.
    """
    for k in range((size + WIDTH - 2) // WIDTH - 1, -1, -1):
        sink(keys, ids, row, at, k, size)


@compiled_inline
def drop_least(keys, ids, row, at, size):
    """Take away the entry that goes first; it stood at the heap's first column.

    Args:
        keys: key table, changed in place [s].
        ids: id table, changed in place.
        row: of the heap.
        at: column where the heap begins.
        size: entries before; at least one.
    """
    keys[row, at], ids[row, at] = keys[row, at + size - 1], ids[row, at + size - 1]
    sink(keys, ids, row, at, 0, size - 1)
