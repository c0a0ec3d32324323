"""What a plan is worth: its figures beside those of sorted, random and six buckets, before a run begins."""

from bucketshuffle.report.compare import Row, compare, notes, to_table

__all__ = ["Row", "compare", "notes", "to_table"]
