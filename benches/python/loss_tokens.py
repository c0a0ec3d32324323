"""How even the loss tokens of optimizer updates are, without and with `loss_tokens`; run as a script."""

import time

import numpy as np
from bucketshuffle.torch import BucketBatchSampler

rng = np.random.default_rng(0)
lengths = np.clip(rng.lognormal(6.5, 1, 200_000).astype(int), 65, 8_191)
loss_tokens = (lengths * rng.beta(1, 2, len(lengths))).astype(int)

for world_size, accumulation_steps, align_ranks in ((4, 1, False), (8, 2, False), (8, 2, True), (16, 4, False)):
    for given in (None, loss_tokens):
        sampler = BucketBatchSampler(
            lengths,
            token_budget=32_768,
            rank=0,
            world_size=world_size,
            accumulation_steps=accumulation_steps,
            align_ranks=align_ranks,
            loss_tokens=given,
        )
        start = time.perf_counter()
        batches = sampler._batches(0, sampler._course)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        of_update = batches.sums(loss_tokens).reshape(-1, sampler.window).sum(1)
        of_update = of_update / of_update.mean()
        print(
            f"{world_size} x {accumulation_steps}, align_ranks={align_ranks}, given={given is not None}: "
            f"{len(of_update)} updates, deviation {of_update.std():.4f}, largest {of_update.max():.3f}, "
            f"{elapsed_ms:.1f} ms"
        )
