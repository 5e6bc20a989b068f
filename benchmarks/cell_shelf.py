"""The folder of results: what was measured with these sources is not measured again."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cell_loads import Pair, plants, rates
from benchmarks.table import ROOT
from headway.experiments.tune import Effort
from headway.models.identified import IdentifiedPlant


class Size(NamedTuple):
    """What a cell costs.

    Args:
        heldout: windows that judge.
        train: windows on which static settings are chosen.
        looks: windows on which the grid is pruned.
        kept: settings of the grid that are judged on all training windows.
        bounds: windows on which the bound is computed.
        effort: of tuning; the requests are those of the cell.
    """

    heldout: int
    train: int
    looks: int
    kept: int
    bounds: int
    effort: Effort


class Shelf:
    """The folder of results: what was measured with these sources is not measured again."""

    def __init__(self, folder: Path, size: Size, *, stale: bool = False) -> None:
        """Open a folder.

        Args:
            folder: made if it is not there.
            size: what cells cost; those of another size are not taken.
            stale: take what was measured with other sources, or at another size, as it is.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.size, self.stale, self.key = folder, size, stale, _key(size)
        self.pairs: dict[str, Pair] = {}

    def get(self, name: str, measure: Callable[[], dict[str, Any]], *, any_source: bool = False) -> dict[str, Any]:
        """What is kept under a name, measured where it is not there.

        Args:
            name: of a cell.
            measure: how to measure it.
            any_source: take what was measured with other sources too.

        Returns:
            The result.
        """
        kept = self.kept(name, any_source=any_source)
        if kept is None:
            began = time.perf_counter()
            kept = measure()
            kept |= {"name": name, "took_s": round(time.perf_counter() - began, 1), "sources": self.key}
            draft = self._file(name).with_suffix(".tmp")
            draft.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            draft.replace(self._file(name))
        return kept

    def kept(self, name: str, *, any_source: bool = False) -> dict[str, Any] | None:
        """What is kept under a name.

        Args:
            name: of a cell.
            any_source: take what was measured with other sources too.

        Returns:
            The result; None where there is none.
        """
        try:
            found = json.loads(self._file(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if any_source or self.stale or found.get("sources") == self.key else None

    def pair(self, name: str) -> Pair:
        """A plant and what the controller knows of it, fitted once.

        Args:
            name: a key of TRACES.

        Returns:
            Pair.
        """
        if name not in self.pairs:
            fresh: list[Pair] = []

            def measure() -> dict[str, Any]:
                fresh.append(plants(name))
                return dict(zip(Pair._fields, (p.to_json() for p in fresh[0]), strict=True))

            kept = self.get(f"plant {name}", measure)
            # read back even where it was just fitted: residuals are kept rounded, and a run that goes on has to see the same ones
            self.pairs[name] = Pair(*(IdentifiedPlant.from_json(kept[field]) for field in Pair._fields))
        return self.pairs[name]

    def rate(self, plant: str, load: str, kv_tokens: int, level: float) -> float:
        """The rate of a cell; those of all levels are found together.

        Args:
            plant: a key of TRACES.
            load: one of BEGIN_RPS.
            kv_tokens: size of the cache [tokens].
            level: one of LEVELS.

        Returns:
            Rate [requests/s].
        """
        find = functools.partial(rates, self.pair(plant).truth, plant, load, kv_tokens)
        measure = lambda: {"rates": {str(at): rate for at, rate in find().items()}}  # noqa: E731
        return self.get(f"rates {plant} {load} {kv_tokens // 1000}k", measure)["rates"][str(level)]

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '_')}.json"


def _key(size: Size) -> str:
    """Hash of everything that a cell depends on."""
    digest = hashlib.sha256(repr(size).encode())
    for folder in ("models", "controllers", "identification", "experiments"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    for file in sorted((ROOT / "benchmarks").glob("cell*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
