"""The part of bucketshuffle that needs torch: batches of tensors for the loaders people already use."""

from bucketshuffle.torch.collate import PadCollator
from bucketshuffle.torch.dataset import PreloadedDataset
from bucketshuffle.torch.sampler import BucketBatchSampler, HeavyBatch, Steps

__all__ = ["BucketBatchSampler", "HeavyBatch", "PadCollator", "PreloadedDataset", "Steps"]
