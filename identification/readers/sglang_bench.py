"""Results of SGLang's bench_serving: a line per rate, and with --output-details an array entry per request."""

from __future__ import annotations

from headway.identification.readers.bench_arrays import array_rows, detailed, failed_note
from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import CUT, RequestRows, lines, rows_frame

FORM = "a result of SGLang's bench_serving"


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a result.

    Args:
        opened: the file.

    Returns:
        True for lines whose first names the benchmark's own keys.
    """
    line = opened.text.split("\n", 1)[0]
    return line.startswith("{") and all(name in line for name in ('"backend"', '"request_rate"', '"random_input_len"'))


def read(opened: Opened) -> RequestRows:
    """Read the requests of all rates that hold some.

    Args:
        opened: the file.

    Returns:
        One row per request. The benchmark does not write when a request was sent, so stamps count from its sending.

    Raises:
        TraceError: no line with single requests.
    """
    rows, warnings, bare, cut = [], [], 0, 0
    for k, result in lines(opened, FORM):
        if result is None:
            cut += 1
        elif not detailed(result):
            bare += 1
        else:
            found = array_rows(result, opened.file, FORM, run=f"rate {result.get('request_rate')} line {k}", row=k)
            warnings += failed_note(found, result)
            rows += found
    if not rows:
        raise TraceError(
            opened.file,
            f"single requests in {FORM}; this one holds averages per rate ({bare} of them) and no single request: record it with "
            "--output-details (headway fit reads the averages as a curve over concurrency)",
        )
    aside = {"a rate of which only averages were written": bare, CUT: cut}
    warnings.append("the file does not say when its requests were sent: their stamps share no clock")
    return RequestRows(rows_frame(rows), "per_request", aside, tuple(warnings))
