"""Data sets as flat buffers: where they come from and how they are kept. NumPy is the only import."""

from bucketshuffle.data.dflash import DFLASH902K_SHA256, dflash902k

__all__ = ["DFLASH902K_SHA256", "dflash902k"]
