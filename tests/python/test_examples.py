"""Every recipe of `examples/` runs as its first lines say: on two processes where ranks matter, stopped and resumed.

Each example records the samples of every batch it trains. A run that was stopped and resumed must have trained what
the uninterrupted run did, batch for batch; a run resumed on other ranks, every sample once.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from processes import EXAMPLES, recorded, run_script, samples_by_epoch

pytest.importorskip("torch")

PARTS = [("parts",), ("fed", "--feed")]
"""Folders of the runs that are stopped and resumed, and their options."""
N_SAMPLES = 240
STOP = 17  # In epoch 1 of every recipe that runs on two ranks, and no multiple of anything.

pytestmark = pytest.mark.timeout(300)


def needs(*modules: str) -> pytest.MarkDecorator:
    # Without importing them: the recipes run in processes of their own.
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def every_sample_in_every_epoch(out: Path, n_epochs: int) -> bool:
    return samples_by_epoch(recorded(out)) == {epoch: list(range(N_SAMPLES)) for epoch in range(n_epochs)}


def test_ddp_resumes_on_as_many_ranks_and_on_more(tmp_path: Path) -> None:
    script = EXAMPLES / "ddp.py"
    run_script(script, "--out", tmp_path / "whole", n_processes=2)
    run_script(script, "--out", tmp_path / "parts", "--stop-after", STOP, n_processes=2)
    assert [len(batches) for batches in recorded(tmp_path / "parts")] == [STOP, STOP]
    shutil.copytree(tmp_path / "parts", tmp_path / "more")
    run_script(script, "--out", tmp_path / "parts", n_processes=2)
    run_script(script, "--out", tmp_path / "more", "--feed", n_processes=3)
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")
    assert every_sample_in_every_epoch(tmp_path / "whole", 3)
    assert every_sample_in_every_epoch(tmp_path / "more", 3)


@needs("accelerate")
def test_accelerate_loop(tmp_path: Path) -> None:
    script = EXAMPLES / "accelerate_loop.py"
    run_script(script, "--out", tmp_path / "whole", n_processes=2)
    for out, *feed in PARTS:
        run_script(script, "--out", tmp_path / out, *feed, "--stop-after", STOP, n_processes=2)
        run_script(script, "--out", tmp_path / out, *feed, n_processes=2)
        assert recorded(tmp_path / out) == recorded(tmp_path / "whole")
    assert every_sample_in_every_epoch(tmp_path / "whole", 3)


@needs("accelerate", "transformers")
@pytest.mark.contract(34, 35)
def test_hf_trainer_stops_in_epoch_1_and_resumes(tmp_path: Path) -> None:
    accumulation_steps = 2
    script, options = EXAMPLES / "hf_trainer.py", ("--accumulation-steps", accumulation_steps)
    run_script(script, "--out", tmp_path / "whole", *options, n_processes=2)
    whole = recorded(tmp_path / "whole")
    n_updates = STOP // accumulation_steps
    assert {epoch for epoch, _ in whole[0][: n_updates * accumulation_steps]} == {0, 1}
    for out, *feed in PARTS:
        run_script(script, "--out", tmp_path / out, *options, *feed, "--stop-after", n_updates, n_processes=2)
        run_script(script, "--out", tmp_path / out, *options, *feed, "--resume", n_processes=2)
        assert recorded(tmp_path / out) == whole
    assert every_sample_in_every_epoch(tmp_path / "whole", 3)
    n_steps, max_steps = json.loads((tmp_path / "whole" / "state.json").read_text())
    assert n_steps == max_steps == len(whole[0]) // accumulation_steps


@needs("accelerate", "transformers")
def test_hf_trainer_resumed_on_another_division_is_refused_or_exact(tmp_path: Path) -> None:
    script = EXAMPLES / "hf_trainer.py"
    run_script(script, "--out", tmp_path / "parts", "--accumulation-steps", 4, "--stop-after", 2)
    for name, accumulation_steps, n_processes in (("fewer", 1, 1), ("more", 4, 2)):
        shutil.copytree(tmp_path / "parts", tmp_path / name)
        options = ("--out", tmp_path / name, "--accumulation-steps", accumulation_steps, "--resume")
        with pytest.raises(
            AssertionError, match="is of another plan; resume with the data, the seed, the token budget"
        ):
            run_script(script, *options, n_processes=n_processes)
        assert recorded(tmp_path / name) == recorded(tmp_path / "parts")
    # Four batches an update as before, on two ranks.
    run_script(script, "--out", tmp_path / "parts", "--accumulation-steps", 2, "--resume", n_processes=2)
    assert every_sample_in_every_epoch(tmp_path / "parts", 3)


@needs("lightning", "torchdata")
@pytest.mark.contract(37, 41)
def test_lightning_module(tmp_path: Path) -> None:
    script = EXAMPLES / "lightning_module.py"
    run_script(script, "--out", tmp_path / "whole")
    for out, *feed in PARTS:
        run_script(script, "--out", tmp_path / out, *feed, "--stop-after", STOP)
        run_script(script, "--out", tmp_path / out, *feed, "--resume")
        assert recorded(tmp_path / out) == recorded(tmp_path / "whole")
    assert every_sample_in_every_epoch(tmp_path / "whole", 3)


@needs("torchdata")
def test_stateful_dataloader(tmp_path: Path) -> None:
    script, options = EXAMPLES / "stateful_dataloader.py", ("--workers", 2)
    run_script(script, "--out", tmp_path / "whole", *options)
    run_script(script, "--out", tmp_path / "parts", *options, "--stop-after", 27)
    run_script(script, "--out", tmp_path / "parts", *options)
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")
    assert every_sample_in_every_epoch(tmp_path / "whole", 3)


@needs("ray")
@pytest.mark.contract(42)
def test_ray_train(tmp_path: Path) -> None:
    run_script(EXAMPLES / "ray_train.py", "--out", tmp_path, timeout_s=200)
    assert len(recorded(tmp_path)) == 2
    assert every_sample_in_every_epoch(tmp_path, 2)
