"""The report of a run folder: one self-contained HTML file. The figures serve any other view of a run as well."""

from headway.report.page import page, write_report

__all__ = ["page", "write_report"]
