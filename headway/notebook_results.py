"""Results that show themselves in a notebook: in text the command's own lines, in HTML the report's own tables."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Unpack

from headway.cli.analysed import analyse_lines
from headway.cli.terminal import progress_bar
from headway.cli.words import fit_lines, tune_lines, validate_lines
from headway.controllers.record import ControllerRecord
from headway.engines.live import live_engine
from headway.experiments.run import STAGES
from headway.experiments.whole_files import read_json, without_nan, write_json
from headway.identification.trace import Trace
from headway.loads import load_of, with_limits
from headway.models.identified import IdentifiedPlant
from headway.notebook_options import EngineLimits, Source, count_of, limits_of, rate_of, text_of, words_of
from headway.pipeline import export_stage, validate_stage
from headway.units import duration_s

LOOK = (
    ".headway .cards{display:flex;flex-wrap:wrap;gap:0 2.5em} .headway .card p{margin:.1em 0} .headway .value{font-size:1.4em} "
    ".headway .table{overflow-x:auto;margin:1em 0} .headway caption{text-align:left} "
    ".headway th,.headway td{text-align:left;padding:.1em .8em;white-space:pre-line} .headway th[scope=row]{font-weight:normal}"
)
"""What the report's classes look like in a notebook, whose own colours and type they keep."""


@dataclasses.dataclass(frozen=True)
class Told:
    """A result that shows itself: as the command's lines in text, as the report's tables in a notebook.

    Args:
        data: plain JSON values, as the command shows them with --json.
        lines: what the command prints.
        html: the report's tables.
    """

    data: dict[str, Any] = dataclasses.field(repr=False)
    lines: tuple[str, ...]
    html: str = dataclasses.field(default="", repr=False)

    def __repr__(self) -> str:
        """The command's lines."""
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        """The report's tables, and the lines where it has none."""
        from headway.report.text import escape

        return boxed(self.html or f"<pre>{escape(repr(self))}</pre>")


@dataclasses.dataclass(frozen=True, repr=False)
class FittedPlant:
    """A plant: how long a step takes, by what is in it, and how sure that is.

    Args:
        identified: the library's own plant.
        content: of plant.json.
        trace: that it was fitted to; None where it was read from a file.
    """

    identified: IdentifiedPlant
    content: dict[str, Any]
    trace: Trace | None = None

    def __repr__(self) -> str:
        """What `headway fit` prints."""
        return "\n".join(fit_lines(self.content, None))

    def _repr_html_(self) -> str:
        """The verdict, the coefficients with their intervals, the structures tried, and where a step's time goes."""
        from headway.report.data import steps_of
        from headway.report.identified import binding_table, coefficient_table, diagnostic_table, ladder_table
        from headway.report.sections import opening

        steps = None if self.trace is None else steps_of(self.trace, self.identified)
        tables = (coefficient_table, ladder_table, binding_table, diagnostic_table)
        return boxed(opening(_found(self.content, steps=steps)) + "".join(table(self.content) for table in tables))

    def save(self, path: Source = STAGES["fit"]) -> Path:
        """Write the plant for the commands.

        Args:
            path: of the file; what stands there is replaced.

        Returns:
            The path.
        """
        write_json(Path(path), self.content)
        return Path(path)

    def simulate(self, workload: Source, target: Source, **options: Any) -> Told:
        """See `headway.simulate`.

        Args:
            workload: file or recipe.
            target: text, or a TOML file of classes.
            **options: of `headway.simulate`.

        Returns:
            What became of the promise.
        """
        from headway.notebook import simulate

        return simulate(self, workload, target, **options)

    def tune(self, workload: Source, target: Source, **options: Any) -> TunedController:
        """See `headway.tune`.

        Args:
            workload: file or recipe.
            target: text, or a TOML file of classes.
            **options: of `headway.tune`.

        Returns:
            The controller.
        """
        from headway.notebook import tune

        return tune(self, workload, target, **options)


@dataclasses.dataclass(frozen=True, repr=False)
class TunedController:
    """A controller, with what is known of it and the plant that it was tuned on.

    Args:
        record: the library's own.
        plant: that it was tuned on.
    """

    record: ControllerRecord
    plant: FittedPlant

    def __repr__(self) -> str:
        """What `headway tune` prints."""
        return "\n".join(tune_lines(self.record.tuning, None))

    def _repr_html_(self) -> str:
        """The verdict, the contenders side by side, what each was set to, and the gains."""
        from headway.report.sections import opening
        from headway.report.tables import gain_table, settings_table, side_table

        record = without_nan(self.record.to_json())
        tuning = record["tuning"]
        names = {"tuned": "heldout", "best static": "best_static", "static + timeout": "best_timeout", "untuned": "untuned"}
        sides = {heading: tuning[key] for heading, key in names.items() if tuning.get(key)}
        figures = {"held-out seeds, predicted": {heading: side["figures"] for heading, side in sides.items()}}
        tables = side_table(figures, "What became of the promise") + settings_table(sides) + gain_table(record)
        return boxed(opening(_found(self.plant.content, record)) + tables)

    def save(self, path: Source = STAGES["tune"]) -> Path:
        """Write the controller, and beside it the plant that it was tuned on, which `headway validate` looks for there.

        Args:
            path: of the controller's file; what stands there is replaced. The plant's is plant.json in the same folder.

        Returns:
            The path of the controller.

        Raises:
            ValueError: another plant.json stands there, or a place cannot be written to.
        """
        path = Path(path)
        beside = path.parent / STAGES["fit"]
        if beside.exists() and read_json(beside) != without_nan(self.plant.content):
            raise ValueError(
                f"{beside} is another plant than the one that this controller was tuned on, and `headway validate` would take it for "
                f"that; save into another folder, or replace it: plant.save({str(beside)!r})"
            )
        write_json(beside, self.plant.content)
        write_json(path, self.record.to_json())
        return path

    def simulate(self, workload: Source | None = None, target: Source | None = None, **options: Any) -> Told:
        """Simulate this controller on its plant, by default on the load that it was tuned for; see `headway.simulate`.

        Args:
            workload: file or recipe; None for the one that it was tuned for.
            target: text, or a TOML file of classes; None for its own.
            **options: of `headway.simulate`.

        Returns:
            What became of the promise.
        """
        from headway.notebook import simulated

        rate = options.pop("rate", None)
        load = load_of(self.record, workload=text_of(workload), rate_rps=rate_of(rate), target=text_of(target))
        return simulated(self.plant, load, self, **options)

    def analyse(self, *, delay: tuple[int, ...] = (1, 2)) -> Told:
        """Stability margins and limit cycles over the plant's operating points, and the certificate, as `headway analyse`.

        Args:
            delay: steps from a command to its measurement.

        Returns:
            The analysis.
        """
        from headway.experiments.analysis import analyse

        data = analyse(self.record.candidate, self.plant.identified, self.record.targets, self.record.limits, delay=delay).to_json()
        return Told(data, tuple(analyse_lines(data)))

    def validate(
        self,
        engine: str = "sim",
        *,
        plant: FittedPlant | Source | None = None,
        workload: Source | None = None,
        target: Source | None = None,
        rate: str | float | None = None,
        requests: int | None = None,
        runs: int | None = None,
        length: str = "20s",
        **limits: Unpack[EngineLimits],
    ) -> Told:
        """Close the loop on an engine and hold measured against predicted, as `headway validate`.

        Args:
            engine: "sim", the exact simulator, or "kernels", live on this machine; servers have the command line.
            plant: to measure on instead of the controller's own.
            workload: another than it was tuned for.
            target: another than it was tuned for.
            rate: another mean rate, such as "12/s"; a number is requests a second.
            requests: per run; None for as many as in tuning.
            runs: repetitions; None for 20, live 3.
            length: of a live run on the engine's clock.
            **limits: of the engine, see `EngineLimits` [tokens, requests].

        Returns:
            The verdict; `data["outcome"]` is "met" where target and prediction held.

        Raises:
            ValueError: something given that cannot be understood, or that cannot be.
        """
        from headway.notebook import plant_of

        count_of("requests", requests)
        count_of("runs", runs)
        words_of('length="20s"', length=length)
        load = load_of(self.record, workload=text_of(workload), rate_rps=rate_of(rate), target=text_of(target))
        bounds = with_limits(self.record.limits, limits_of(**limits))
        with tempfile.TemporaryDirectory() as folder, progress_bar() as bar:
            controller = self.save(Path(folder) / STAGES["tune"])
            other = None if plant is None else plant_of(plant).save(Path(folder) / "measured.json")
            live = live_engine(engine, preset="tiny", limits=bounds, progress=bar)
            found = validate_stage(
                controller,
                None,
                engine=live,
                plant=other,
                load=load,
                record=self.record,
                limits=bounds,
                requests=requests or int(self.record.workload.get("requests") or 1000),
                cut_s=duration_s(length),
                runs=runs or (20 if live is None else 3),
                progress=bar,
            )
        data = without_nan(found.to_json())
        return Told(data, tuple(validate_lines(data, None)), _validated(self, data))

    def export(self, engine: str, out: Source, *, force: bool = False, uncertified: bool = False) -> Told:
        """Write the controller for use outside Headway, as `headway export`.

        Args:
            engine: a key of `headway.engines.EXPORTERS`, such as "python".
            out: folder to make.
            force: write into a folder that holds something.
            uncertified: write a controller whose certificate is refused; it is said in what is written.

        Returns:
            What was written.
        """
        data = export_stage(self.record, engine, Path(out), force=force, uncertified=uncertified)
        return Told(data, (f"written    {out}: {', '.join(data['files'])}", *(f"note: {text}" for text in data["warnings"])))


def _validated(controller: TunedController, data: dict[str, Any]) -> str:
    from headway.report.sections import opening, side_section

    found = _found(controller.plant.content, without_nan(controller.record.to_json()), data)
    return opening(found) + side_section(found)


def _found(
    plant: dict[str, Any], controller: dict[str, Any] | None = None, validation: dict[str, Any] | None = None, steps: Any = None
) -> Any:
    """What the report's functions read, of results that lie in no run folder."""
    from headway.report.data import Findings

    return Findings(Path(), plant, controller, validation, {}, steps)


def boxed(html: str) -> str:
    """A result as a notebook shows it.

    Args:
        html: of the report's functions, everything in it escaped.

    Returns:
        HTML that changes nothing outside its own box.
    """
    return f'<div class="headway"><style>{LOOK}</style>{html}</div>'


def listed(texts: list[str]) -> str:
    """Sentences as the report lists them.

    Args:
        texts: plain text.

    Returns:
        HTML, everything escaped; empty where there is none.
    """
    from headway.report.text import escape

    return f'<ul class="cautions">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""
