"""What a serving engine's own flags are worth: which of them a version has, what they carry, and when they do nothing."""

from __future__ import annotations

from typing import NamedTuple


class Knob(NamedTuple):
    """One flag of one engine.

    Args:
        engine: a key of `knob_tables.VERSIONS`.
        flag: as it is typed.
        name: what the engine calls it in its configuration and its log.
        carries: what of a controller it carries: "token_budget", "running_limit", "chunk_tokens", "mixed" or "chunked"; "" for
            one that an export never writes and that is listed for what it does to the others.
        unit: of its value.
        since: first known version that has it.
        until: last known version that has it; None where the newest known still does.
        default: what is in force without it.
        acts: what it does.
        idle: when it does nothing, or not what its name says.
        source: where that stands.
    """

    engine: str
    flag: str
    name: str
    carries: str
    unit: str
    since: str
    until: str | None
    default: str
    acts: str
    idle: str
    source: str

    def there(self, version: str) -> bool:
        """Whether a known version has it.

        Args:
            version: one that is known.

        Returns:
            True if it does.
        """
        return order(self.since) <= order(version) and (self.until is None or order(version) <= order(self.until))


def order(version: str) -> tuple[int, ...]:
    """A version as numbers that compare, whatever is appended to the last of them left out.

    Args:
        version: such as "0.32.0", "v0.5.12.post1" or "1.2.0rc2".

    Returns:
        Its leading numbers.

    Raises:
        ValueError: it does not begin with a number.

    Example:
        >>> order("0.32.0+cpu"), order("v0.5.12.post1")
        ((0, 32, 0), (0, 5, 12))
    """
    numbers: list[int] = []
    for part in version.strip().lstrip("v").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    if not numbers:
        raise ValueError(f"a version is numbers with dots, got {version!r}; write for example 0.32.0")
    return tuple(numbers + [0] * (3 - len(numbers)))


def known_version(engine: str, asked: str | None, versions: tuple[str, ...]) -> tuple[str, str]:
    """The version whose flags are taken: the one asked for, or the nearest older one that is known.

    Args:
        engine: its name, for what is said.
        asked: the version that will run; None for the newest known.
        versions: known ones, oldest first.

    Returns:
        (the known version; a sentence where it is not the one asked for, else "").

    Raises:
        ValueError: older than every known version, or no version at all.
    """
    if asked is None:
        return versions[-1], f"no engine version was given: the flags are those of {engine} {versions[-1]}, the newest known"
    older = [v for v in versions if order(v) <= order(asked)]
    if not older:
        raise ValueError(
            f"{engine} {asked} is older than every version whose flags are known ({', '.join(versions)}); "
            "update the engine, or set its flags by hand from the JSON export"
        )
    if order(older[-1]) == order(asked):
        return older[-1], ""
    return older[
        -1
    ], f"{engine} {asked} is not among the versions whose flags are known: those of {older[-1]}, the nearest older one, are taken"
