"""From a batch in the CPU's memory to the device of its consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

Fields = dict[str, Any]


class Sent(NamedTuple):
    """A batch on its way."""

    fields: Fields
    arrived: torch.cuda.Event | None
    """On a CUDA device: recorded after the last copy."""
    n_bytes: int
    """Memory of its tensors."""


class Placement:
    """Sends batches to one device. On CUDA the copies start from pinned memory and run on a stream of their own.

    torch's allocator keeps pinned blocks and hands them out again once their copy is done, so after the first batches
    nothing is pinned anew.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._is_cuda = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]

    def send(self, fields: Mapping[str, Any]) -> Sent:
        """Returns the batch with its copies under way; any thread may call it."""
        n_bytes = sum(tensor.nbytes for tensor in _tensors(fields))
        if self.device is None:
            return Sent(dict(fields), None, n_bytes)
        if self._stream is None:
            return Sent(_each_tensor(fields, lambda tensor: tensor.to(self.device)), None, n_bytes)
        with torch.cuda.stream(self._stream):
            moved = _each_tensor(fields, lambda tensor: _pinned(tensor).to(self.device, non_blocking=True))
            return Sent(moved, self._stream.record_event(), n_bytes)

    def receive(self, sent: Sent) -> Fields:
        """Returns the fields of a batch that this placement has sent, for the current stream of the calling thread."""
        if sent.arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(sent.arrived)
            for tensor in _tensors(sent.fields):
                tensor.record_stream(stream)  # Its memory is not handed out again before this stream is done with it.
        return sent.fields


def pinned(fields: Mapping[str, Any]) -> Fields:
    """Returns a batch with its CPU tensors in pinned memory."""
    return _each_tensor(fields, _pinned)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


def _tensors(fields: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    return (value for value in fields.values() if isinstance(value, torch.Tensor))


def _each_tensor(fields: Mapping[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Fields:
    return {name: change(value) if isinstance(value, torch.Tensor) else value for name, value in fields.items()}
