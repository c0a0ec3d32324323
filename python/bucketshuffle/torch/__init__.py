"""The part of bucketshuffle that needs torch: batches of tensors for the loaders people already use."""

from bucketshuffle.schedule import HeavyBatch, Steps
from bucketshuffle.torch.check import check_loader, check_ranks
from bucketshuffle.torch.collate import PadCollator
from bucketshuffle.torch.dataset import PreloadedDataset
from bucketshuffle.torch.feed import BatchInfo, Feed, FeedBatch
from bucketshuffle.torch.ordered import OrderedBatchSampler
from bucketshuffle.torch.sampler import BucketBatchSampler

__all__ = [
    "BatchInfo",
    "BucketBatchSampler",
    "Feed",
    "FeedBatch",
    "HeavyBatch",
    "OrderedBatchSampler",
    "PadCollator",
    "PreloadedDataset",
    "Steps",
    "check_loader",
    "check_ranks",
]
