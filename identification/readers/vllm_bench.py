"""Results of `vllm bench serve --save-result --save-detailed`: arrays with one entry per request, and the gaps of each."""

from __future__ import annotations

from headway.identification.readers.bench_arrays import array_rows, detailed, failed_note
from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import RequestRows, rows_frame, whole

FORM = "a result of vllm bench serve"


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a result.

    Args:
        opened: the file.

    Returns:
        True for an object whose start names the benchmark's own keys.
    """
    names = ('"num_prompts"', '"total_input_tokens"', '"request_throughput"')
    return opened.text.lstrip().startswith("{") and all(name in opened.text for name in names)


def read(opened: Opened) -> RequestRows:
    """Read the requests of a result.

    Args:
        opened: the file.

    Returns:
        One row per request. Where a chunk brought several tokens, its arrivals are chunks, not tokens.

    Raises:
        TraceError: no such object, or one without the arrays of single requests.
    """
    result = whole(opened, FORM)
    if not detailed(result):
        raise TraceError(
            opened.file,
            f"the arrays of single requests in {FORM}; this one holds averages only: record it with --save-result --save-detailed",
        )
    rows = array_rows(result, opened.file, FORM)
    warnings = failed_note(rows, result)
    clock = "monotonic" if "start_times" in result else "per_request"
    if clock == "per_request":
        warnings.append("the file does not say when its requests were sent (start_times): their stamps share no clock")
    return RequestRows(rows_frame(rows), clock, {}, tuple(warnings))
