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
    script = EXAMPLES / f"{recipe}.py"
    if recipe == "deepspeed":
        script = tmp_path / "with_deepspeed.py"
        script.write_text(DEEPSPEED)
    numbers_of_ranks = [1] if recipe == "stateful_dataloader" else [1, 2]  # ddp is the recipe of several processes.
    cases = list(itertools.product(numbers_of_ranks, [1, 4], [False, True]))
    runs: list[tuple[int, list[str]]] = []
    for n_ranks, accumulation_steps, labels in cases:
        out = str(tmp_path / f"{n_ranks}-{accumulation_steps}-{labels}")
        options = ["--out", out, "--epochs", "1", "--accumulation-steps", str(accumulation_steps)]
        options += ["--labels"] if labels else []
        if recipe == "deepspeed":
            options = [out, str(accumulation_steps), "labels" if labels else "none"]
        elif recipe == "lightning_module":
            options += ["--devices", str(n_ranks)]
        elif recipe == "ray_train":
            options += ["--ranks", str(n_ranks)]
        runs.append((0 if recipe == "ray_train" else n_ranks, options))
    run_script(Path(__file__).parent / "run_in_turn.py", script, json.dumps(runs), timeout_s=280)
    errors = {}
    for case in cases:
        n_ranks, accumulation_steps, labels = case
        out = tmp_path / f"{n_ranks}-{accumulation_steps}-{labels}"
        assert len(recorded(out)) == n_ranks, case
        errors[case] = relative_error(out, accumulation_steps, labels)
    assert max(errors.values()) < 1e-5, errors
