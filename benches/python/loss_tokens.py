"""How balanced the loss tokens of optimizer updates are, without and with `loss_tokens`; run as a script."""

import time

import numpy as np
from bucketshuffle.schedule import Schedule

rng = np.random.default_rng(0)
lengths = np.clip(rng.lognormal(6.5, 1, 200_000).astype(int), 65, 8_191)
loss_tokens = (lengths * rng.beta(1, 2, len(lengths))).astype(int)

for world_size, accumulation_steps, balance_ranks in ((4, 1, False), (8, 2, False), (8, 2, True), (16, 4, False)):
    for given in (None, loss_tokens):
        schedule = Schedule(
            lengths,
            token_budget=32_768,
            world_size=world_size,
            accumulation_steps=accumulation_steps,
            balance_ranks=balance_ranks,
            loss_tokens=given,
        )
        start = time.perf_counter()
        batches = schedule.batches(0)
        elapsed_ms = (time.perf_counter() - start) * 1e3
        of_update = batches.sums(loss_tokens).reshape(-1, schedule.window).sum(1)
        of_update = of_update / of_update.mean()
        print(
            f"{world_size} x {accumulation_steps}, balance_ranks={balance_ranks}, given={given is not None}: "
            f"{len(of_update)} updates, deviation {of_update.std():.4f}, largest {of_update.max():.3f}, "
            f"{elapsed_ms:.1f} ms"
        )
