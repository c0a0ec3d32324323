"""The lengths that the figures of this library are measured on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DFLASH902K_SHA256 = "c68072f09a52b28ecfc4922f29805685f205977294e26c64a188723f5add6fa6"
"""SHA-256 of `dflash902k()` as little-endian int32."""


def dflash902k() -> npt.NDArray[np.int32]:
    """Returns the 902,087 lengths of a stand-in for the DFlash data set, `[902087]`, int32, 65 to 8,191 tokens.

    Synthetic, not the data itself: 70 % log-normal (median 1340, sigma 0.815) and 30 % log-normal (median 2464, sigma
    0.256), lengths below 65 rejected, above 8,191 cut; chosen so that sorted, random and six-bucket batches of 131,072
    tokens pad in the write-up's ratios. It draws on `PCG64.random_raw` alone, which no NumPy version changes.

    Examples:
        >>> from bucketshuffle.data import dflash902k
        >>> lengths = dflash902k()
        >>> len(lengths), int(lengths.min()), int(lengths.max()), int(lengths.sum())
        (902087, 65, 8191, 1843297780)
    """
    n, shortest, longest = 902_087, 65, 8_191
    n_draws = n + n // 50 + 64  # Spare ones for the rejected lengths.
    raw = np.random.PCG64(902_087).random_raw(3 * n_draws).reshape(3, n_draws)
    u, a, b = (raw >> np.uint64(11)) * 2.0**-53
    normal = np.sqrt(-2.0 * np.log1p(-a)) * np.cos(2.0 * np.pi * b)  # Box-Muller
    broad = u < 0.70
    lengths = np.where(broad, 1340.0, 2464.0) * np.exp(np.where(broad, 0.815, 0.256) * normal)
    whole: npt.NDArray[np.int32] = np.minimum(np.floor(lengths), longest).astype(np.int32)
    return whole[whole >= shortest][:n]
