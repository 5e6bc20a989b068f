"""One file per format. Files are read here and nowhere else in identification; none is written."""

from headway.identification.readers.detect import TraceReader
from headway.identification.readers.errors import TraceError
from headway.identification.readers.traces import TRACE_READERS, read_trace

__all__ = ["TRACE_READERS", "TraceError", "TraceReader", "read_trace"]
