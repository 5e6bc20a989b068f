"""A file of no known format: one line that fits a terminal, with the nearest format and what it lacks of it."""

from __future__ import annotations

from pathlib import Path

from headway.identification.readers import TRACE_READERS
from headway.identification.readers.unknown import Format, nearest
from tests.test_trace_readers import _said, _written


def test_what_is_said_of_an_unknown_file_fits_a_few_lines_of_a_terminal_and_names_a_page_that_is_there(tmp_path: Path) -> None:
    many = ",".join(f"a_rather_long_name_of_a_column_{k}" for k in range(40))
    half = [",".join(reader.columns[: (len(reader.columns) + 1) // 2]) for reader in TRACE_READERS.values() if len(reader.columns) > 2]
    for text in (many, *half, "\0\1\2", "x" * 9000, '{"' + "k" * 900 + '": 1}', '{"scheduled\\n": 1, "wall_time": 2}'):
        said = _said(_written(tmp_path, text + "\n"))
        assert "\n" not in said
        assert len(said) < 400
    page = Path(__file__).parents[1] / "docs" / "commands.md"
    if page.exists():  # these tests run from a copy as well
        assert "\n## A trace\n" in page.read_text(encoding="utf-8")
        assert "\n## A workload\n" in page.read_text(encoding="utf-8")


def test_every_format_that_names_its_columns_is_nearest_to_most_of_them() -> None:
    for shape in ("columns", "keys"):
        formats = {name: Format(reader.says, getattr(reader, shape)) for name, reader in TRACE_READERS.items()}
        for name, known in formats.items():
            if len(known.names) > 2:
                found = nearest(known.names[:-1], formats)
                assert found is not None
                assert (found.name, found.lacks) == (name, known.names[-1:])
        assert nearest(("colour", "size"), formats) is None
        assert nearest((), formats) is None
