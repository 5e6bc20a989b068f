"""Where one MessagePack object ends and the next begins: msgspec decodes objects, but only one at a time and cut to size."""

from __future__ import annotations

from collections.abc import Iterator

MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))

# Bytes of each object by its first byte: (bytes of a length that follows, bytes beside it, objects inside for each one counted).
# A length counts bytes where nothing lies inside, else objects: one each in an array, two in a map.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_EXT = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_LENGTH = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_INSIDE = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def end_of_object(data: bytes, start: int) -> int | None:
    """Where an object ends. Nested objects are counted, not descended into, so no depth is too deep.

    Args:
        data: the stream.
        start: where the object begins, less than the length of `data` [bytes].

    Returns:
        The place after it [bytes]; None if the data ends within it.

    Raises:
        ValueError: a byte that begins no object.

    Source:
        MessagePack specification, https://github.com/msgpack/msgpack/blob/master/spec.md, "Formats".

    Example:
        >>> end_of_object(bytes([0x82, 0xA1, 0x61, 0x01, 0xA1, 0x62, 0xC0, 0x05]), 0)
        7
    """
    at, left, size = start, 1, len(data)
    while left:
        # More objects than bytes: they cannot all be there, however the length was meant.
        if at >= size or left > size - at:
            return None
        first = data[at]
        at, left = at + 1, left - 1
        if first <= 0x7F or first >= 0xE0:
            continue
        if first <= 0x8F:
            left += 2 * (first & 0x0F)
        elif first <= 0x9F:
            left += first & 0x0F
        elif first <= 0xBF:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        elif first in _EXT:
            at += _EXT[first]
        elif first in _LENGTH:
            width, beside = _LENGTH[first]
            at += width + beside + int.from_bytes(data[at : at + width], "big")
        elif first in _INSIDE:
            width, each = _INSIDE[first]
            left += each * int.from_bytes(data[at : at + width], "big")
            at += width
        else:
            raise ValueError(f"byte {first:#04x} at {at - 1} begins no MessagePack object")
    return at if at <= size else None


def objects(data: bytes) -> Iterator[tuple[int, int | None]]:
    """The objects of a stream. Those of an array at the top come one by one, as if they stood there without it.

    Args:
        data: objects one after the other, arrays of objects, or both.

    Returns:
        (start, end) of each [bytes]; the last end is None if the data ends within that object.

    Raises:
        ValueError: a byte that begins no object.
    """
    at, size = 0, len(data)
    while at < size:
        first = data[at]
        if first in ARRAYS:
            at += 1 + {0xDC: 2, 0xDD: 4}.get(first, 0)
            continue
        end = end_of_object(data, at)
        yield at, end
        if end is None:
            return
        at = end
