from bucketshuffle.torch.sampler import BucketBatchSampler, HeavyBatch, Steps
