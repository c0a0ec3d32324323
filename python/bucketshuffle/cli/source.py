"""`bucketshuffle lengths` and `bucketshuffle pack`."""
