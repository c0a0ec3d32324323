"""What a plan is worth: its figures beside those of sorted, random and six buckets, before a run begins."""

from bucketshuffle.report.compare import Row, compare, notes
from bucketshuffle.report.distribution import Distribution
from bucketshuffle.report.report import Report
from bucketshuffle.report.sweeps import Point, sweep_budgets, sweep_repeat_weights
from bucketshuffle.report.tables import Table, strategies_table

__all__ = [
    "Distribution",
    "Point",
    "Report",
    "Row",
    "Table",
    "compare",
    "notes",
    "strategies_table",
    "sweep_budgets",
    "sweep_repeat_weights",
]
