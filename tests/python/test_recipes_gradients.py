"""In every recipe the gradient of an update is that of the mean over its supervised tokens, of all ranks and steps."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from processes import EXAMPLES, recorded, run_script
from test_examples import needs

torch = pytest.importorskip("torch")

from test_trainers import DEEPSPEED  # noqa: E402

sys.path.insert(0, str(EXAMPLES))
from tiny import Model, dataset, labelled_dataset, loss_tokens_of  # noqa: E402

pytestmark = pytest.mark.timeout(300)


def relative_error(out: Path, accumulation_steps: int, labels: bool) -> float:
    """Of the first update's gradient on the first rank, against one batch a sample."""
    data = labelled_dataset() if labels else dataset()
    update = torch.load(out / "update0.pt")
    trained = [samples for batches in recorded(out) for _, samples in batches[:accumulation_steps]]
    samples = [sample for batch in trained for sample in batch]
    tokens = data.lengths if loss_tokens_of(data) is None else loss_tokens_of(data)
    model = Model().double()
    with torch.no_grad():
        for weights, saved in zip(model.parameters(), update["weights"], strict=True):
            weights.copy_(saved)
    sum(model(**data.batch([sample])) for sample in samples).div(int(tokens[samples].sum())).backward()
    expected = torch.cat([weights.grad.flatten() for weights in model.parameters()])
    actual = torch.cat([gradient.flatten().double() for gradient in update["gradients"]])
    return float((actual - expected).norm() / expected.norm())


# A worker group of Ray takes longer to start than all runs on it take to train.
RAY = """
import json, sys
from pathlib import Path
import ray_train, tiny
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    for run in config["runs"]:
        tiny._first_update.clear()
        ray_train.train(run)

out, runs = json.loads(sys.argv[1])
for n_ranks in sorted({run["n_ranks"] for run in runs}):
    TorchTrainer(
        train,
        train_loop_config={"runs": [run for run in runs if run["n_ranks"] == n_ranks]},
        scaling_config=ScalingConfig(num_workers=n_ranks, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=str(Path(out) / "ray")),
    ).fit()
"""

RECIPES = [
    "ddp",
    pytest.param("stateful_dataloader", marks=needs("torchdata")),
    pytest.param("accelerate_loop", marks=needs("accelerate")),
    pytest.param("hf_trainer", marks=needs("transformers")),
    pytest.param("lightning_module", marks=needs("lightning", "torchdata")),
    pytest.param("deepspeed", marks=needs("deepspeed")),
    pytest.param("ray_train", marks=needs("ray")),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_gradient_of_an_update_is_that_of_the_mean_over_its_tokens(tmp_path: Path, recipe: str) -> None:
    numbers_of_ranks = [1] if recipe == "stateful_dataloader" else [1, 2]  # ddp is the recipe of several processes.
    cases = list(itertools.product(numbers_of_ranks, [1, 4], [False, True]))
    outs = [tmp_path / f"{n_ranks}-{accumulation_steps}-{labels}" for n_ranks, accumulation_steps, labels in cases]
    run_all(recipe, tmp_path, [(*case, str(out)) for case, out in zip(cases, outs, strict=True)])
    errors = {}
    for (n_ranks, accumulation_steps, labels), out in zip(cases, outs, strict=True):
        assert len(recorded(out)) == n_ranks
        errors[out.name] = relative_error(out, accumulation_steps, labels)
    assert max(errors.values()) < 1e-5, errors


def run_all(recipe: str, tmp_path: Path, cases: list[tuple[int, int, bool, str]]) -> None:
    script = EXAMPLES / f"{recipe}.py"
    if recipe == "ray_train":
        script = tmp_path / "in_one_group.py"
        script.write_text(RAY)
        names = ("n_ranks", "accumulation_steps", "labels", "run")
        runs = [{**dict(zip(names, case, strict=True)), "epochs": 1} for case in cases]
        run_script(script, json.dumps([str(tmp_path), runs]), timeout_s=280)
        return
    if recipe == "deepspeed":
        script = tmp_path / "with_deepspeed.py"
        script.write_text(DEEPSPEED)
    arguments: list[tuple[int, list[str]]] = []
    for n_ranks, accumulation_steps, labels, out in cases:
        options = ["--out", out, "--epochs", "1", "--accumulation-steps", str(accumulation_steps)]
        options += ["--labels"] if labels else []
        if recipe == "deepspeed":
            options = [out, str(accumulation_steps), "labels" if labels else "none"]
        elif recipe == "lightning_module":
            options += ["--devices", str(n_ranks)]
        arguments.append((n_ranks, options))
    run_script(Path(__file__).parent / "run_in_turn.py", script, json.dumps(arguments), timeout_s=280)
