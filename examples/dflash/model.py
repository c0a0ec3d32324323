"""A small target model, and a drafter in the manner of DFlash (arXiv 2602.06036).

The drafter predicts a block of tokens at once. Hidden states of several target layers before an anchor are injected as
keys and values into each of its layers. The block, an anchor token and masked places, attends to them and to itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Sizes of both models."""

    n_tokens: int = 16
    longest: int = 512
    width: int = 64
    n_heads: int = 4
    n_target_layers: int = 2
    n_drafter_layers: int = 2
    block: int = 4
    """Places of a block: the anchor token, and those that are predicted."""
    n_anchors: int = 16
    """Anchors of one sample in one step."""


CPU = Size()
GPU = Size(n_tokens=4096, longest=8192, width=2048, n_heads=16, n_target_layers=16, n_drafter_layers=4, block=16)


class Layer(nn.Module):
    """Attention and a feed-forward part, both before a norm. `context`, where given, comes first among the keys."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.n_heads = size.n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2))
        self.query = nn.Linear(size.width, size.width)
        self.key_value = nn.Linear(size.width, 2 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        normed = self.norms[0](x)
        keys_from = normed if context is None else torch.cat([context, normed], 1)
        key, value = self.key_value(keys_from).chunk(2, -1)
        query, key, value = (
            t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in (self.query(normed), key, value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x))


class Target(nn.Module):
    """A causal language model. Rows are padded on the right, so no real token attends to padding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.n_tokens, size.width)
        self.places = nn.Embedding(size.longest, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.n_target_layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.n_tokens)
        nn.init.normal_(self.places.weight, std=0.1)  # Tokens matter more.

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits, (B, L, n_tokens), and the hidden states of all layers, (B, L, n_layers * width)."""
        x = self.tokens(input_ids) + self.places.weight[: input_ids.shape[1]]
        hidden = []
        for layer in self.layers:
            x = layer(x)
            hidden.append(x)
        return self.logits(x), torch.cat(hidden, -1)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class Drafter(nn.Module):
    """Predicts `block - 1` tokens after each anchor in parallel."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.inject = nn.Linear(size.n_target_layers * size.width, size.width)
        self.masked = nn.Parameter(torch.randn(size.width))
        self.offsets = nn.Embedding(size.block, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.n_drafter_layers))

    def forward(self, target: Target, input_ids: Tensor, hidden: Tensor, anchors: Tensor) -> Tensor:
        """Returns the logits of the places after each anchor, (B, A, block - 1, n_tokens).

        Args:
            target: embeds and reads tokens; its weights are not changed.
            input_ids: (B, L).
            hidden: (B, L, n_target_layers * width); those before an anchor are seen.
            anchors: (B, A), places in the sample.
        """
        n_batch, n_anchors = anchors.shape
        block = self.size.block
        known = target.tokens(input_ids.gather(1, anchors)) + target.places(anchors)  # (B, A, width)
        # The masked places begin from their anchor, too: a small model finds it there sooner than by attention.
        x = known[:, :, None] + torch.cat([torch.zeros_like(self.masked)[None], self.masked.expand(block - 1, -1)])
        x = (x + self.offsets.weight).flatten(1, 2)  # (B, A * block, width)
        before = torch.arange(input_ids.shape[1], device=anchors.device) < anchors[..., None]  # (B, A, L)
        before = before.repeat_interleave(block, 1)  # (B, A * block, L)
        of = torch.arange(n_anchors, device=anchors.device).repeat_interleave(block)
        same = (of[:, None] == of).expand(n_batch, -1, -1)  # (B, A * block, A * block)
        mask = torch.cat([before, same], -1)[:, None]
        context = self.inject(hidden)
        for layer in self.layers:
            x = layer(x, context, mask)
        return target.logits(x.unflatten(1, (n_anchors, block))[:, :, 1:])


def block_loss(logits: Tensor, input_ids: Tensor, anchors: Tensor, lengths: Tensor, gamma: float = 4.0) -> Tensor:
    """Returns the sum over the blocks of each sample, (B,): the mean loss of the places of a block, weighted by
    `exp(-(k - 1) / gamma)`, because a wrong token ends what is accepted of a block. Places beyond the sample count
    nothing."""
    k = torch.arange(1, logits.shape[2] + 1, device=anchors.device)
    places = anchors[..., None] + k  # (B, A, block - 1)
    inside = places < lengths[:, None, None]
    labels = input_ids.gather(1, places.clamp(max=input_ids.shape[1] - 1).flatten(1)).view_as(places)
    losses = functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(places)
    weights = torch.exp(-(k - 1) / gamma) * inside
    return ((losses * weights).sum(-1) / weights.sum(-1).clamp(min=1e-9)).sum(-1)


@torch.no_grad()
def accepted_length(drafter: Drafter, target: Target, input_ids: Tensor, hidden: Tensor, anchors: Tensor) -> Tensor:
    """Returns (B, A): the tokens of each greedy draft that the target, greedy too, would have written itself.

    The target reads each sample up to an anchor and the draft after it, in one pass for all samples.
    """
    drafts = drafter(target, input_ids, hidden, anchors).argmax(-1)  # (B, A, block - 1)
    accepted = []
    for a in range(anchors.shape[1]):
        places = anchors[:, a, None] + torch.arange(1, drafts.shape[2] + 1, device=anchors.device)
        longer = functional.pad(input_ids, (0, drafts.shape[2]))[:, : drafter.size.longest]
        places = places.clamp(max=longer.shape[1] - 1)
        written = target(longer.scatter(1, places, drafts[:, a]))[0].argmax(-1)
        right = written.gather(1, places - 1) == drafts[:, a]
        accepted.append(right.long().cumprod(1).sum(1))
    return torch.stack(accepted, 1)
