"""Text to tokens, by a local `tokenizers` file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from bucketshuffle.data.sources import Rows, Text


class FileTokenizer:
    """The tokenizer in a `tokenizer.json`, without the truncation and the padding that the file may ask for.

    Args:
        path: the file, or the folder that `save_pretrained` wrote it to.
        special_tokens: add those that the file's post-processor adds, such as one at the end.

    Raises:
        OSError: no such file, or one that may not be read.
        ValueError: the file holds no tokenizer.
        ImportError: the package `tokenizers` is missing.
    """

    def __init__(self, path: str, *, special_tokens: bool = True) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(
                'text is tokenized with the package tokenizers; install it with pip install "bucketshuffle[data]"'
            ) from error
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        with open(path, "rb") as file:
            content = file.read()
        try:
            self._tokenizer: Any = Tokenizer.from_buffer(content)
        except Exception as error:  # the package raises nothing narrower
            raise ValueError(
                f"{path} holds no tokenizer ({error}); pass the tokenizer.json that save_pretrained writes"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special_tokens = special_tokens

    def rows(self, texts: Text, *, values: bool) -> Rows:
        """Returns the tokens of each text; their ids, int32, only where `values` are asked for."""
        encoded = self._tokenizer.encode_batch(texts.values, add_special_tokens=self._special_tokens)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return Rows(lengths, _ids(encoded, int(lengths.sum())) if values else None)


def _ids(encoded: list[Any], n_tokens: int) -> npt.NDArray[np.int32]:
    return np.fromiter((token for encoding in encoded for token in encoding.ids), np.int32, n_tokens)
