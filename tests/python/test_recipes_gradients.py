"""In every recipe the gradient of an update is that of the mean over its supervised tokens, of all ranks and steps."""

from __future__ import annotations

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


@pytest.mark.parametrize("labels", [False, True], ids=["no labels", "labels"])
@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize(
    "recipe",
    [
        "ddp",
        pytest.param("stateful_dataloader", marks=needs("torchdata")),
        pytest.param("accelerate_loop", marks=needs("accelerate")),
        pytest.param("hf_trainer", marks=needs("transformers")),
        pytest.param("lightning_module", marks=needs("lightning", "torchdata")),
        pytest.param("deepspeed", marks=needs("deepspeed")),
        pytest.param("ray_train", marks=needs("ray")),
    ],
)
def test_the_gradient_of_an_update_is_that_of_the_mean_over_its_tokens(
    tmp_path: Path, recipe: str, n_ranks: int, accumulation_steps: int, labels: bool
) -> None:
    script, options = EXAMPLES / f"{recipe}.py", ["--epochs", "1", "--accumulation-steps", accumulation_steps]
    options += ["--out", tmp_path, *(["--labels"] if labels else [])]
    if recipe == "deepspeed":
        script = tmp_path / "with_deepspeed.py"
        script.write_text(DEEPSPEED)
        run_script(script, tmp_path, accumulation_steps, "labels" if labels else "none", n_processes=n_ranks)
    elif recipe == "ray_train":
        run_script(script, *options, "--ranks", n_ranks, timeout_s=200)
    elif recipe == "lightning_module":
        run_script(script, *options, "--devices", n_ranks)
    elif recipe == "stateful_dataloader":
        if n_ranks > 1:
            pytest.skip("this recipe is of one process; ddp is that of several")
        run_script(script, *options)
    else:
        run_script(script, *options, n_processes=n_ranks)
    assert len(recorded(tmp_path)) == n_ranks
    assert relative_error(tmp_path, accumulation_steps, labels) < 1e-5
