"""The sampler inside the wrappers of accelerate, transformers, Lightning, Fabric, Ray and DeepSpeed: lines 29 to 43.

What needs ranks runs in two real processes (gloo); the runs that stop and resume are in test_examples.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from processes import run_script
from test_examples import needs

torch = pytest.importorskip("torch")

from bucketshuffle.torch import BucketBatchSampler, Feed, PadCollator, check_loader, check_ranks  # noqa: E402
from samplers import SMALL, Numbers, as_is, at_epoch, in_step_order, loader_of, make, ranks  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = pytest.mark.timeout(300)
line = pytest.mark.contract


def refuses(loader: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_loader(loader)


def to_tensor(samples: list[int]) -> Any:
    return torch.tensor(samples)


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Any:
    data_loader = pytest.importorskip("accelerate.data_loader")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    pytest.importorskip("accelerate").PartialState(cpu=True)
    return data_loader


def batches_of(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def prepared(accelerate: Any, sampler: BucketBatchSampler, **shares: Any) -> Any:
    loader: Any = DataLoader(Numbers(len(sampler.lengths)), batch_sampler=sampler, collate_fn=to_tensor)
    return accelerate.prepare_data_loader(loader, torch.device("cpu"), **shares)


# D. accelerate and transformers


@line(29)
def test_it_has_none_of_the_attributes_that_make_wrappers_cut_batches() -> None:
    sampler = make()
    list(sampler)
    assert not [name for name in ("batch_size", "generator", "batch_sampler") if hasattr(sampler, name)]
    assert not getattr(sampler, "drop_last", False)


@line(30)
def test_the_epoch_hook_of_wrappers_is_the_sampler(accelerate: Any) -> None:
    sampler: Any = make()
    assert sampler.sampler is sampler
    loader = prepared(accelerate, sampler, num_processes=1, process_index=0)
    loader.set_epoch(3)
    assert sampler.epoch == 3
    assert loader.get_sampler() is sampler


@line(31)
def test_accelerate_divides_the_batches_of_a_sampler_for_one_rank(accelerate: Any) -> None:
    shares = [prepared(accelerate, make(window=2), num_processes=2, process_index=rank) for rank in range(2)]
    epochs = []
    for epoch in range(3):
        per_rank = []
        for loader in shares:
            loader.set_epoch(epoch)
            per_rank.append(batches_of(loader))
            assert len(loader) == len(per_rank[-1])
        epochs.append(in_step_order(per_rank))
        assert epochs[-1] == at_epoch(make(window=2), epoch)
    assert epochs[0] != epochs[1]


@line(32)
def test_accelerate_leaves_a_sampler_for_two_ranks_alone(accelerate: Any) -> None:
    for rank, sampler in enumerate(ranks(2)):
        loader = prepared(accelerate, sampler, num_processes=1, process_index=0, put_on_device=True)
        for epoch in range(3):
            whole = at_epoch(ranks(2)[rank], epoch)
            loader.set_epoch(epoch)
            assert batches_of(loader) == whole
            tail = accelerate.skip_first_batches(loader, 3)
            tail.set_epoch(epoch)
            assert batches_of(tail) == whole[3:]


@line(33)
def test_check_loader_passes_what_is_divided_once(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_loader(loader_of(make()))
    check_loader(prepared(accelerate, make(), num_processes=1, process_index=0))
    check_loader(accelerate.skip_first_batches(prepared(accelerate, make(), num_processes=1, process_index=0), 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    divided = make(rank=1, world_size=2)
    check_loader(loader_of(divided))
    check_loader(prepared(accelerate, divided, num_processes=1, process_index=0))


@line(33)
def test_check_loader_finds_batches_that_are_divided_twice(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    twice = prepared(accelerate, make(rank=0, world_size=2), num_processes=2, process_index=0)
    refuses(
        twice,
        "loader divides the batches among 2 processes again, after the sampler has among 2 ranks; use "
        "prepare_data_loader(loader, num_processes=1, process_index=0, put_on_device=True), or build the "
        "sampler with rank=0, world_size=1, window=2",
    )


@line(33)
def test_check_loader_finds_batches_that_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuses(
        loader_of(make(rank=0, world_size=1)),
        "loader divides the batches among 1 ranks, but 2 train; build the sampler after the process group, or pass "
        "rank and world_size",
    )


@line(33)
def test_check_loader_names_a_world_size_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "abc")
    refuses(
        loader_of(make(rank=0, world_size=1)),
        "the environment has WORLD_SIZE = 'abc', not a whole number; correct it, or pass rank and world_size",
    )


@line(33)
def test_check_loader_finds_a_number_of_batches_that_ranks_cannot_share(accelerate: Any) -> None:
    refuses(
        prepared(accelerate, make(window=3), num_processes=2, process_index=0),
        "loader divides batches that were planned for windows of 3 among 2 processes; build the sampler with a window "
        "that is a multiple of 2",
    )


@line(33)
def test_check_loader_finds_an_epoch_that_does_not_arrive(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers, resumed: `SkipBatchSampler` around `BatchSamplerShard` hides the sampler from every hook."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = prepared(accelerate, make(rank=0, world_size=1, window=2), num_processes=2, process_index=0)
    resumed = accelerate.skip_first_batches(loader, 2)
    resumed.set_epoch(1)
    assert resumed.batch_sampler.batch_sampler.batch_sampler.epoch == 0, "what check_loader is there to find"
    refuses(
        resumed,
        "set_epoch of loader does not reach the sampler (BucketBatchSampler in BatchSamplerShard in SkipBatchSampler); "
        "use a rank-aware sampler with prepare_data_loader(loader, num_processes=1, process_index=0, "
        "put_on_device=True), or call sampler.set_epoch yourself",
    )


@line(33)
def test_check_loader_finds_a_dispatcher(accelerate: Any) -> None:
    refuses(
        prepared(accelerate, make(), num_processes=1, process_index=0, dispatch_batches=True, put_on_device=True),
        "loader joins the batches of all ranks and cuts them anew (dispatch_batches), past the token budget; set "
        "dispatch_batches=False",
    )


@line(33)
def test_check_loader_names_what_it_finds_instead_of_a_sampler() -> None:
    loader: Any = DataLoader(Numbers(60), batch_size=4)
    refuses(
        loader,
        "loader has BatchSampler, not a BucketBatchSampler; pass one as DataLoader(..., batch_sampler=sampler)",
    )
    loader = DataLoader(Numbers(60), sampler=make(), batch_size=None)
    refuses(
        loader,
        "loader has no batch sampler, not a BucketBatchSampler; pass one as DataLoader(..., batch_sampler=sampler)",
    )


@line(36)
def test_skipping_by_iteration_plans_once_and_gives_the_tail(accelerate: Any, n_plans: list[int]) -> None:
    """benches/python/bench_sampler.py has the time per batch."""
    tail = list(make())[5:]
    n_plans.clear()
    assert list(accelerate.SkipBatchSampler(make(), 5)) == tail
    assert n_plans == [0]


# E. Lightning and Fabric

LIGHTNING = """
import warnings; warnings.simplefilter("ignore")
import lightning, torch
from lightning.fabric import Fabric
from samplers import SMALL, Numbers, at_epoch, in_step_order, make, ranks
from torch.utils.data import DataLoader
from bucketshuffle.torch import check_loader, check_ranks

def to_tensor(samples):
    return torch.tensor(samples)

def loader_of(sampler):
    return DataLoader(Numbers(60), batch_sampler=sampler, collate_fn=to_tensor)

def gathered(batches):
    everyone = [None, None]
    torch.distributed.all_gather_object(everyone, batches)
    return everyone

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = {}
    def training_step(self, batch, _):
        self.seen.setdefault(self.current_epoch, []).append(batch.tolist())
        return self.layer(batch[:, None].float()).mean()
    def predict_step(self, batch, _):
        return batch.tolist()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

def trainer_of(**options):
    return lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )

class InHook(Module):
    def train_dataloader(self):
        return loader_of(make())

def trained(module):
    assert sorted(module.seen) == [0, 1, 2]
    for epoch, batches in module.seen.items():
        expected = in_step_order([at_epoch(sampler, epoch) for sampler in ranks(2)])
        assert in_step_order(gathered(batches)) == expected, epoch

# 37: made in a hook, Lightning's default.
module = InHook()
trainer = trainer_of()
trainer.fit(module)
trained(module)
check_loader(trainer.train_dataloader)
rank = torch.distributed.get_rank()

# 38: passed to fit.
try:
    trainer_of().fit(Module(), loader_of(make()))
    raise SystemExit("not refused")
except TypeError as error:
    assert "can't inject a (distributed) sampler into your batch sampler" in str(error), error
    print("refused by Lightning")
module = Module()
trainer_of(use_distributed_sampler=False).fit(module, loader_of(make()))
trained(module)

# 40: predict.
class Predicts(Module):
    def predict_dataloader(self):
        return loader_of(make())
predicted = trainer_of().predict(Predicts())
assert predicted == at_epoch(ranks(2)[rank], 0)

# 39: Fabric, both cases.
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
loader = fabric.setup_dataloaders(loader_of(make()), use_distributed_sampler=False)
check_loader(loader)
for epoch in range(2):
    batches = [batch.tolist() for batch in loader]
    assert in_step_order(gathered(batches)) == in_step_order([at_epoch(s, epoch) for s in ranks(2)])
try:
    fabric.setup_dataloaders(loader_of(make()))
    raise SystemExit("not refused")
except TypeError as error:
    assert "can't inject a (distributed) sampler into your batch sampler" in str(error), error
    print("refused by Fabric")

# 19: ranks that would train different plans.
check_ranks(make())
for changed, text in [
    ({"seed": rank}, "the sampler of rank 1 is of another plan: seed = 1 (rank 0: 0); build it alike on every rank"),
    ({"token_budget": 60 + rank}, "the sampler of rank 1 is of another plan: token_budget = 61 (rank 0: 60); build it "
     "alike on every rank"),
    ({"rank": 0, "world_size": 2}, "the samplers have ranks [0, 0]; leave rank out, or pass each process its own"),
]:
    try:
        check_ranks(make(**changed))
        raise SystemExit(f"not refused: {changed}")
    except ValueError as error:
        assert str(error) == text, error
print("all done")
torch.distributed.destroy_process_group()
"""


@needs("lightning")
@line(19, 37, 38, 39, 40)
def test_lightning_and_fabric_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "with_lightning.py"
    script.write_text(LIGHTNING)
    printed = run_script(script, n_processes=2)
    assert printed.count("refused by Lightning") == printed.count("refused by Fabric") == 2
    assert printed.count("all done") == 2


@line(19)
def test_check_ranks_needs_no_process_group() -> None:
    check_ranks(make())


@needs("lightning")
@line(40)
def test_lightning_wraps_it_to_predict() -> None:
    from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper

    wrapper: Any = _IndexBatchSamplerWrapper(make())
    assert list(wrapper) == wrapper.seen_batch_indices == list(make())
    check_loader(DataLoader(Numbers(60), batch_sampler=wrapper, collate_fn=as_is))


# F. Ray and DeepSpeed


@line(42)
def test_a_loader_that_was_rebuilt_without_its_batch_sampler_is_refused() -> None:
    """Ray's `prepare_data_loader` passes `loader.batch_size`, None: single samples reach the collator."""
    rows = [{"input_ids": [1, 2, 3]}] * 4
    loader: Any = DataLoader(rows, batch_size=None, collate_fn=PadCollator())  # type: ignore[arg-type]
    message = (
        "items is a single sample (a dict), not a list of samples: the loader has lost its batch sampler, as Ray's "
        "prepare_data_loader does to it; pass add_dist_sampler=False there, or give the DataLoader a batch_sampler"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        next(iter(loader))
    refuses(
        loader,
        "loader has no batch sampler, not a BucketBatchSampler; pass one as DataLoader(..., batch_sampler=sampler)",
    )


DEEPSPEED = """
import deepspeed, torch
import torch.distributed as dist
from pathlib import Path
from tiny import TOKEN_BUDGET, Model, dataset, labelled_dataset, loss_tokens_of, record
from torch.utils.data import DataLoader
from bucketshuffle.torch import BucketBatchSampler, check_loader
import sys

# Its shared-memory collectives would be compiled here, for CPUs alone.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
accumulation_steps, labels = int(sys.argv[2]), sys.argv[3] == "labels"
data = labelled_dataset() if labels else dataset()
sampler = BucketBatchSampler(
    data.lengths,
    seed=0,
    token_budget=TOKEN_BUDGET,
    accumulation_steps=accumulation_steps,
    loss_tokens=loss_tokens_of(data),
)
loader = DataLoader(data, batch_sampler=sampler, collate_fn=data.collate)
check_loader(loader)
model = Model()
# No training_data: DeepSpeed would build a loader with a fixed batch size of its own.
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
    config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation_steps},
)
for epoch in range(2):
    sampler.set_epoch(epoch)
    # DeepSpeed averages over ranks and over steps.
    for batch, n_tokens in zip(loader, sampler.denominators(), strict=True):
        record(Path(sys.argv[1]), sampler.rank, epoch, batch)
        engine.backward(engine(**batch) * sampler.world_size * accumulation_steps / n_tokens)
        engine.step()
dist.destroy_process_group()
"""


@needs("deepspeed")
@line(43)
def test_deepspeed_trains_from_a_loader_of_its_own(tmp_path: Path) -> None:
    from processes import recorded, samples_by_epoch

    script = tmp_path / "with_deepspeed.py"
    script.write_text(DEEPSPEED)
    run_script(script, tmp_path, 1, "none", n_processes=2)
    assert samples_by_epoch(recorded(tmp_path)) == {epoch: list(range(240)) for epoch in range(2)}


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
@pytest.mark.parametrize("overfit_batches", [2, 0.25])
@pytest.mark.parametrize("fed", [False, True])
def test_lightning_overfits_the_same_batches_in_every_epoch(package: str, overfit_batches: float, fed: bool) -> None:
    lightning = pytest.importorskip(package)
    sampler = make(rank=0, world_size=1)

    class Overfits(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained: dict[int, list[list[int]]] = {}

        def train_dataloader(self) -> Any:
            if fed:
                return Feed(range(len(SMALL)), sampler, collate=lambda samples: {"samples": samples})
            return DataLoader(range(len(SMALL)), batch_sampler=sampler, collate_fn=lambda samples: {"samples": samples})

        def training_step(self, batch: Any, _: int) -> Any:
            self.trained.setdefault(self.current_epoch, []).append(batch["samples"])
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    module = Overfits()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, overfit_batches=overfit_batches, **quiet)
    trainer.fit(module)
    n_batches = overfit_batches if overfit_batches > 1 else int(len(make()) * overfit_batches)
    assert module.trained == dict.fromkeys(range(3), list(make())[:n_batches])
