"""Padded batches for training: within 1 % of sorted padding, mixed better than a full shuffle, planned in milliseconds."""
