"""The folder of a sweep: what was asked for, every combination's runs as they end, and the tables in the end. A killed one goes on."""

from __future__ import annotations

import fcntl
import io
import json
import math
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from headway.experiments.promises import COLUMNS, NAMES
from headway.experiments.run import versions
from headway.experiments.sweep import Swept, key_of
from headway.experiments.whole_files import ENDING, read_json, without_nan, write_json, write_whole

REQUEST, RUNS, RESULT = "request.json", "runs.jsonl", "sweep.json"
SCHEMA = "headway/sweep/1"


class SweepFolder:
    """A folder that one sweep at a time writes to.

    Args:
        path: of the folder; made if need be.
        request: everything but the combinations that a run depends on, as plain JSON values: another one is refused.
        draws: runs of a combination.

    Raises:
        ValueError: the folder holds something else, or a sweep of something else, or another sweep writes to it now.
    """

    def __init__(self, path: Path, request: dict[str, Any], draws: int) -> None:
        """Open or make it, and take in what it holds."""
        self.path, self.cut = path, 0
        asked = {"schema": SCHEMA, "request": without_nan(request), "versions": versions()}
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give a folder")
        if (path / REQUEST).exists():
            self._same(asked)
        elif path.exists() and any(not p.name.endswith(ENDING) for p in path.iterdir()):
            raise ValueError(f"{path} is not empty and holds no sweep; give a new folder")
        else:
            write_json(path / REQUEST, asked)
        self.file: IO[str] = (path / RUNS).open("a", encoding="utf-8")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise ValueError(f"{path}: another sweep writes to this folder now; wait for it, or give a new folder") from None
        self.known = self._read(draws)

    def _same(self, asked: dict[str, Any]) -> None:
        kept = read_json(self.path / REQUEST)
        if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
            raise ValueError(f"{self.path / REQUEST}: not the request of a sweep; give a new folder")
        for part in ("request", "versions"):
            if kept.get(part) != asked[part]:
                differing = sorted(k for k in asked[part] if (kept.get(part) or {}).get(k) != asked[part][k])
                what = "with another" if part == "request" else "under another version of"
                raise ValueError(f"{self.path} was begun {what} {', '.join(differing) or 'request'}; give a new folder")

    def _read(self, draws: int) -> dict[str, np.ndarray]:
        """Runs by combination; a line that a kill cut off is left out, and counted."""
        text = (self.path / RUNS).read_text(encoding="utf-8")
        found, lines = {}, []
        for line in text.splitlines():
            try:
                row = json.loads(line)
                runs = np.array([[math.nan if x is None else x for x in run] for run in row["runs"]], float)
                if runs.shape != (draws, COLUMNS):
                    raise ValueError(f"expected {draws} runs of {COLUMNS} figures, found {runs.shape}")
                found[key_of(row["at"])] = runs
                lines.append(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.cut += 1
        if self.cut:  # the file itself stays, it is locked
            self.file.truncate(0)
            self.file.writelines(f"{line}\n" for line in lines)
            self.file.flush()
        return found

    def keep(self, at: dict[str, float], runs: np.ndarray) -> None:
        """Write down one combination.

        Args:
            at: value by name.
            runs: shape (draws, COLUMNS).
        """
        self.file.write(json.dumps(without_nan({"at": at, "runs": runs.tolist()})) + "\n")
        self.file.flush()

    def finish(self, swept: Swept, more: dict[str, Any]) -> list[Path]:
        """Write the tables: one row per run, one row per combination, and the result.

        Args:
            swept: the result.
            more: what the result is to say beside it.

        Returns:
            The files.
        """
        points, (_, draws, _) = swept.points, swept.runs.shape
        at = {name: np.repeat([p[name] for p in points], draws) for name in points[0]}
        rows = swept.runs.reshape(-1, COLUMNS)
        single = pl.DataFrame({**at, "seed": np.tile(np.arange(draws), len(points)), **{n: rows[:, k] for k, n in enumerate(NAMES)}})
        means = swept.runs.mean(axis=1)
        whole = pl.DataFrame({**{n: [p[n] for p in points] for n in points[0]}, **{n: means[:, k] for k, n in enumerate(NAMES)}})
        parquet, csv = io.BytesIO(), io.BytesIO()
        single.write_parquet(parquet)
        whole.write_csv(csv)
        files = [self.path / name for name in ("sweep.parquet", "sweep.csv", RESULT)]
        write_whole(files[0], parquet.getvalue())
        write_whole(files[1], csv.getvalue())
        write_json(files[2], {"schema": SCHEMA, **swept.to_json(), **more})
        return files

    def close(self) -> None:
        """Let another sweep have the folder."""
        self.file.close()
