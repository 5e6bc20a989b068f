"""What a controller is exported as beside its own runtimes: flags, a cost table, a scheduler file; one row each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.controllers.record import ControllerRecord
from headway.engines.ascend import profile_files
from headway.engines.certified import granted
from headway.engines.flags import ENGINES, flag_files
from headway.engines.sglang_export import sglang_files
from headway.engines.transformers_export import transformers_files

if TYPE_CHECKING:
    from headway.engines.export import Exported

Writer = Callable[[ControllerRecord, str | None, dict[str, Any]], tuple[dict[str, str], tuple[str, ...]]]


def refuse_schedule(record: ControllerRecord, what: str) -> None:
    """Refuse gains that follow the load for what cannot follow it.

    Args:
        record: the controller.
        what: that cannot, as the message names it.

    Raises:
        ValueError: it has a schedule.
    """
    if record.candidate.gains is not None:
        names = ", ".join(record.candidate.gains.names)
        raise ValueError(f"{what} cannot follow the load, and {names} do; export this controller as python, vllm or json")


def _flags(engine: str) -> Writer:
    return lambda record, version, certificate: flag_files(record, engine, version, certificate)


TARGETS: dict[str, Writer] = {
    **{name: _flags(engine) for name, engine in ENGINES.items()},
    "vllm-ascend": profile_files,
    "sglang": sglang_files,
    "transformers": transformers_files,
}
"""Writers by the name of what they write for: record, engine version or None, certificate -> (text by file, what there is to say)."""


def export_target(
    name: str, record: ControllerRecord, out: str | Path, *, force: bool = False, uncertified: bool = False, version: str | None = None
) -> Exported:
    """Write what one of TARGETS makes of a controller.

    Args:
        name: a key of TARGETS.
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write for a law whose certificate is refused; what is written says so.
        version: of the engine that will run; None for the newest known.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, the law is refused, or the target cannot carry the controller, as one whose gains
            follow the load.
    """
    from headway.engines.export import said_of, write_folder

    refuse_schedule(record, f"an export for {name}")
    certificate = granted(record, uncertified=uncertified)
    files, words = TARGETS[name](record, version, certificate)
    return write_folder(out, files, (*said_of(record, certificate), *words), force)
