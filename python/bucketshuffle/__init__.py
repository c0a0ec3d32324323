"""Padded batches for training: padded little more than sorted data, fresh in every epoch, planned in milliseconds."""

from bucketshuffle._core import __version__
from bucketshuffle.epoch_plan import EpochPlan
from bucketshuffle.lengths import lengths_of
from bucketshuffle.metrics import Metrics
from bucketshuffle.options import PlanOptions
from bucketshuffle.plan import (
    DFLASH_BOUNDARIES,
    ORDER_VERSION,
    Planner,
    pack_epoch,
)
from bucketshuffle.stats import DomainStats, Stats

__all__ = [
    "DFLASH_BOUNDARIES",
    "ORDER_VERSION",
    "DomainStats",
    "EpochPlan",
    "Metrics",
    "PlanOptions",
    "Planner",
    "Stats",
    "__version__",
    "lengths_of",
    "pack_epoch",
]
