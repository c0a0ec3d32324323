"""The DFlash-shaped example learns, and a run that was stopped inside an epoch ends as the uninterrupted one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from processes import EXAMPLES, run_script

torch = pytest.importorskip("torch")

TRAIN = EXAMPLES / "dflash" / "train.py"


def test_the_drafter_learns_what_the_target_accepts(tmp_path: Path) -> None:
    printed = run_script(TRAIN, "--out", tmp_path, timeout_s=280)
    lines = re.findall(r"loss (\d+\.\d+), accepted (\d+\.\d+) of 3", printed)
    losses, accepted = [float(loss) for loss, _ in lines], [float(n) for _, n in lines]
    assert losses[-1] < 0.6 * losses[0]
    assert accepted[0] < 0.5 < 1 < accepted[-1]
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {epoch for epoch, _, _, _ in log} == set(range(6))
    assert len({bucket for _, _, bucket, _ in log}) > 3


@pytest.mark.parametrize("options", [(), ("--per-sample",)], ids=["tokens", "draft rows too"])
def test_a_run_stopped_inside_an_epoch_continues_bit_for_bit(tmp_path: Path, options: tuple[str, ...]) -> None:
    options = ("--samples", "200", "--epochs", "2", "--target-steps", "5", *options)
    run_script(TRAIN, "--out", tmp_path / "whole", *options)
    run_script(TRAIN, "--out", tmp_path / "parts", *options, "--stop-after", "7")
    assert 7 <= len((tmp_path / "parts" / "log.jsonl").read_text().splitlines()) <= 8
    run_script(TRAIN, "--out", tmp_path / "parts", *options, "--resume")
    whole, parts = (torch.load(tmp_path / out / "checkpoint.pt") for out in ("whole", "parts"))
    assert whole["feed"] == parts["feed"]
    assert all(torch.equal(whole["drafter"][name], parts["drafter"][name]) for name in whole["drafter"])
    assert (tmp_path / "whole" / "log.jsonl").read_text() == (tmp_path / "parts" / "log.jsonl").read_text()
