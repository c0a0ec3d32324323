"""`Feed`: the planned batches, made on threads: none lost, none repeated, nothing left running."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
import torch
from bucketshuffle.torch import BucketBatchSampler, Feed, FeedBatch, PadCollator, PreloadedDataset, check_loader
from bucketshuffle.torch._placement import Placement
from samplers import SMALL, Numbers, at_epoch, every_sample, in_step_order, make, ranks

N_SECONDS = 1.0
"""How long threads may take to end."""


def preloaded(lengths: Any = SMALL) -> PreloadedDataset:
    offsets = np.append(0, np.cumsum(lengths))
    return PreloadedDataset(np.arange(offsets[-1]), offsets, collator=PadCollator(sample_indices=True))


DATA = preloaded()


class Rows:
    """A plain map-style data set of the same samples."""

    def __init__(self, fail_at: int | None = None, error: type[BaseException] = OSError) -> None:
        self.fail_at, self.error = fail_at, error
        self.n_fetched = 0

    def __len__(self) -> int:
        return len(SMALL)

    def __getitem__(self, sample: int) -> dict[str, Any]:
        self.n_fetched += 1
        if sample == self.fail_at:
            raise self.error("the disk is gone")
        return {"input_ids": DATA[sample]["input_ids"], "sample_indices": sample}


def samples_of(batch: FeedBatch) -> list[int]:
    samples: list[int] = batch["sample_indices"].tolist()
    return samples


def taken(batches: Iterator[FeedBatch], n: int | None = None) -> list[list[int]]:
    return [samples_of(batch) for _, batch in zip(range(n if n is not None else 10**9), batches, strict=False)]


def feed_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("bucketshuffle-feed")]


def becomes_true(condition: Callable[[], bool], within: float = N_SECONDS) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    yield
    gc.collect()
    assert becomes_true(lambda: not feed_threads())


# The batches.


@pytest.mark.parametrize("data", [DATA, Rows()], ids=["preloaded", "map-style"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_batches_are_those_of_the_plan_in_its_order(data: Any, n_threads: int) -> None:
    feed = Feed(data, make(), n_threads=n_threads, n_ahead=5)
    for epoch in range(2):
        feed.set_epoch(epoch)
        batches = list(feed)
        assert [samples_of(batch) for batch in batches] == at_epoch(make(), epoch)
        for batch in batches:
            expected = DATA.batch(batch["sample_indices"])
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[name], expected[name]) for name in expected)
    assert len(feed) == len(make())


def test_several_epochs_follow_each_other() -> None:
    feed = Feed(DATA, make())
    batches = list(feed.epochs(3))
    assert [batch.info.position.epoch for batch in batches] == [epoch for epoch in range(3) for _ in range(len(feed))]
    assert [samples_of(batch) for batch in batches] == [b for epoch in range(3) for b in at_epoch(make(), epoch)]
    assert list(feed.epochs(3)) == []


def test_a_batch_knows_what_the_plan_says_of_it() -> None:
    loss_tokens = np.asarray(SMALL) // 2
    for rank, sampler in enumerate(ranks(2, accumulation_steps=3, loss_tokens=loss_tokens)):
        steps = sampler.steps(1)
        sampler.set_epoch(1)
        for step, batch in enumerate(Feed(DATA, sampler)):
            info, samples = batch.info, samples_of(batch)
            assert (info.position.epoch, info.position.n_done, info.step) == (1, 2 * step, step)
            assert (info.n_samples, info.padded_length) == tuple(batch["input_ids"].shape)
            assert info.real_tokens == sum(SMALL[i] for i in samples)
            assert info.loss_tokens == sum(SMALL[i] // 2 for i in samples)
            assert info.step_tokens == steps.real_tokens[step].sum()
            assert info.bucket == steps.buckets[step, rank]
            assert info.denominator == steps.denominators[step]
            assert info.ends_update == (step % 3 == 2)
            assert info.ends_epoch == (step == len(sampler) - 1)


@pytest.mark.parametrize(("accumulation_steps", "n_done"), [(4, 2), (3, 0), (5, 0)])
def test_updates_are_counted_from_where_the_ranks_began(accumulation_steps: int, n_done: int) -> None:
    """Six batches are done. Updates of four batches have begun with the epoch, others begin here."""
    state = after_some(Feed(DATA, make(rank=0, world_size=2, accumulation_steps=2)), 3)
    feed = Feed(DATA, make(accumulation_steps=accumulation_steps))
    feed.load_state_dict(state)
    infos = [batch.info for batch in feed]
    ends = [(i + 1 + n_done) % accumulation_steps == 0 or i + 1 == len(infos) for i in range(len(infos))]
    assert [info.ends_update for info in infos] == ends
    feed.load_state_dict(state)
    assert [info.denominator for info in infos] == feed.batch_sampler.steps().denominators.tolist()


# The state.


def after_some(feed: Feed, n: int) -> dict[str, Any]:
    """The state after `n` batches, when as many more are made as the feed keeps."""
    batches = feed.epochs(3)
    taken(batches, n)
    assert becomes_true(lambda: feed.counters().n_ready >= min(feed.n_ahead, len(feed) - n) or n == 0)
    state: dict[str, Any] = json.loads(json.dumps(feed.state_dict()))
    return state


@pytest.mark.parametrize("n_ahead", [1, 8])
def test_a_resume_at_every_position_neither_loses_nor_repeats_a_batch(n_ahead: int) -> None:
    whole = taken(Feed(DATA, make()).epochs(2))
    for n in range(len(whole) + 1):
        first = Feed(DATA, make(), n_ahead=n_ahead)
        batches = first.epochs(2)
        before = taken(batches, n)
        again = Feed(DATA, make(), n_ahead=n_ahead)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + taken(again.epochs(2)) == whole
        assert before + taken(batches) == whole  # The first goes on, too.


@pytest.mark.parametrize("n_done", [0, 1, 5])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_state_loads_on_other_ranks(n_done: int, world_size: int) -> None:
    feeds = [Feed(DATA, sampler) for sampler in ranks(2)]
    loops = [iter(feed) for feed in feeds]
    before = in_step_order([taken(loop, n_done) for loop in loops])
    states = [feed.state_dict() for feed in feeds]
    assert states[0] == states[1]
    others = [Feed(DATA, sampler) for sampler in ranks(world_size)]
    for other in others:
        other.load_state_dict(states[0])
    rest = in_step_order([taken(iter(other)) for other in others])
    assert every_sample(before + rest) == list(range(len(SMALL)))


@pytest.mark.parametrize("begun_on", [1, 2])
def test_the_state_after_a_batch_is_the_one_right_after_its_delivery(begun_on: int) -> None:
    feed = Feed(DATA, make(accumulation_steps=3))
    feed.load_state_dict(after_some(Feed(DATA, make(rank=0, world_size=begun_on)), 3))
    for batch in feed.epochs(2):
        assert feed.state_after(batch.info) == feed.state_dict()


def test_the_samplers_state_and_the_feeds_are_one() -> None:
    feed = Feed(DATA, make())
    feed.batch_sampler.resume(1, 4)
    loop = iter(feed)
    assert taken(loop, 2) == at_epoch(make(), 1)[4:6]
    assert feed.state_dict() == feed.batch_sampler.state_dict()
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (1, 6)
    taken(loop)
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (2, 0)


def test_an_epoch_chosen_between_two_epochs_is_trained_next() -> None:
    feed = Feed(DATA, make())
    loop = feed.epochs(6)
    taken(loop, len(feed))
    feed.set_epoch(4)
    assert taken(loop) == at_epoch(make(), 4) + at_epoch(make(), 5)


def test_an_epoch_repeats_only_with_a_warning() -> None:
    feed = Feed(DATA, make())
    taken(iter(feed))
    with pytest.warns(UserWarning, match="epoch 0 is trained again"):
        taken(iter(feed))


def test_the_end_of_an_epoch_loaded_and_chosen_has_no_batches() -> None:
    feed, other = Feed(DATA, make()), Feed(DATA, make())
    taken(iter(feed))
    other.load_state_dict(feed.state_dict())
    with pytest.warns(UserWarning, match="end of epoch 0"):
        other.set_epoch(0)
    assert taken(iter(other)) == []
    other.set_epoch(1)
    assert taken(iter(other)) == at_epoch(make(), 1)


# Ahead of the loop.


def test_the_next_epoch_is_planned_on_a_thread_while_this_one_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make()
    planned: list[tuple[int, str]] = []
    plan = sampler.schedule.batches

    def recorded(epoch: int, arrangement: Any = None) -> Any:
        planned.append((epoch, threading.current_thread().name))
        return plan(epoch, arrangement)

    monkeypatch.setattr(sampler.schedule, "batches", recorded)
    feed = Feed(DATA, sampler)
    for epoch in range(3):
        feed.set_epoch(epoch)
        loop = iter(feed)
        next(loop)
        assert becomes_true(lambda: planned[-1][0] == epoch + 1)  # noqa: B023
        taken(loop)
    taken(feed.epochs(4))
    assert [epoch for epoch, _ in planned] == [0, 1, 2, 3]  # Each once, and none after the last.
    assert all(name.startswith("bucketshuffle-feed") for _, name in planned)


@pytest.mark.parametrize("n_ahead", [1, 4])
def test_no_more_batches_are_made_than_are_kept(n_ahead: int) -> None:
    data = Rows()
    feed = Feed(data, make(), n_ahead=n_ahead)
    loop = feed.epochs(2)
    plan = at_epoch(make(), 0)
    for n in (1, 2, 5):
        taken(loop, n - feed.counters().n_batches)
        assert becomes_true(lambda: feed.counters().n_ready == n_ahead)
        time.sleep(0.02)
        assert feed.counters().n_ready == n_ahead
        assert data.n_fetched == sum(map(len, plan[: n + n_ahead]))


def test_the_batches_kept_stay_within_their_memory() -> None:
    feed = Feed(DATA, make(), n_ahead=50, max_bytes=6_000)
    sizes = [sum(value.nbytes for value in batch.values()) for batch in Feed(DATA, make())]
    loop, most_ready = iter(feed), 0
    for n in range(1, len(sizes)):
        next(loop)
        assert becomes_true(lambda: feed.counters().n_ready > 0)
        time.sleep(0.005)
        n_ready = feed.counters().n_ready
        assert sum(sizes[n : n + n_ready]) <= 6_000
        most_ready = max(most_ready, n_ready)
    assert most_ready > 1  # What they may take is used.
    assert taken(Feed(DATA, make(), max_bytes=1).epochs(1)) == at_epoch(make(), 0)


def test_a_data_set_that_gives_whole_batches_is_asked_for_them() -> None:
    class Whole(Numbers):
        def __getitems__(self, samples: list[int]) -> list[int]:
            assert isinstance(samples, list)
            return [-sample for sample in samples]

    feed = Feed(Whole(len(SMALL)), make(), collate=lambda samples: {"samples": samples})
    assert [batch["samples"] for batch in feed] == [[-i for i in batch] for batch in at_epoch(make(), 0)]


def test_counters_count_what_was_delivered() -> None:
    feed = Feed(DATA, make())
    assert feed.counters() == (0, 0, 0, 0.0, 0.0, 0, 0)
    assert (feed.counters().wait_share, feed.counters().real_tokens_per_s) == (0.0, 0.0)
    loop = iter(feed)
    batches = [next(loop) for _ in range(4)]
    counters = feed.counters()
    assert counters.n_batches == 4
    assert counters.real_tokens == sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert counters.padded_tokens == sum(batch["input_ids"].numel() for batch in batches)
    assert 0 <= counters.n_stalls <= 4
    assert 0 < counters.wait_share <= 1
    assert 0 < counters.waited_s <= counters.elapsed_s
    assert counters.padded_tokens_per_s == counters.padded_tokens / counters.elapsed_s
    assert set(counters.postfix()) == {"Ktok/s", "padded", "wait", "ready"}


def test_the_clock_stands_between_loops() -> None:
    feed = Feed(DATA, make())
    taken(iter(feed))
    elapsed = feed.counters().elapsed_s
    time.sleep(0.3)
    feed.set_epoch(1)
    taken(iter(feed))
    assert feed.counters().elapsed_s - elapsed < 0.3 + elapsed


def test_a_batch_that_was_ready_is_no_stall() -> None:
    feed = Feed(DATA, make(), n_ahead=4)
    loop = iter(feed)
    next(loop)
    n_stalls = feed.counters().n_stalls
    for _ in range(5):
        assert becomes_true(lambda: feed.counters().n_ready == 4)
        next(loop)
    assert feed.counters().n_stalls == n_stalls


def test_a_batch_that_is_waited_for_is_a_stall() -> None:
    class Slow(Rows):
        def __getitem__(self, sample: int) -> dict[str, Any]:
            time.sleep(0.003)
            return super().__getitem__(sample)

    feed = Feed(Slow(), make(), n_ahead=1)
    taken(iter(feed))
    assert feed.counters().n_stalls == len(feed)
    assert feed.counters().wait_share > 0.9


# Errors.


def first_with(sample: int) -> int:
    return next(i for i, batch in enumerate(at_epoch(make(), 0)) if sample in batch)


@pytest.mark.parametrize("n_ahead", [1, 8])
def test_an_error_of_the_data_set_reaches_the_loop_with_its_traceback(n_ahead: int) -> None:
    data = Rows(fail_at=17)
    feed = Feed(data, make(), n_ahead=n_ahead)
    seen: list[list[int]] = []
    with pytest.raises(OSError, match=r"^the disk is gone$") as caught:
        seen.extend(map(samples_of, feed.epochs(2)))
    assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert seen == at_epoch(make(), 0)[: first_with(17)]
    data.fail_at = None  # The state stands before the batch that failed.
    assert seen + taken(feed.epochs(1)) == at_epoch(make(), 0)


@pytest.mark.parametrize("error", [StopIteration, CancelledError, KeyboardInterrupt, MemoryError, SystemExit])
def test_no_error_ends_the_loop_as_if_the_epoch_were_over(error: type[BaseException]) -> None:
    feed = Feed(Rows(fail_at=17, error=error), make())
    expected = RuntimeError if error is StopIteration else error
    with pytest.raises(expected):
        taken(iter(feed))
    assert feed.counters().n_batches == first_with(17)


def test_an_error_of_the_plan_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(DATA, make())
    plan = feed.batch_sampler.schedule.batches

    def failing(epoch: int, arrangement: Any = None) -> Any:
        if epoch == 1:
            raise MemoryError("no room for the plan")
        return plan(epoch, arrangement)

    monkeypatch.setattr(feed.batch_sampler.schedule, "batches", failing)
    loop = feed.epochs(3)
    assert taken(loop, len(feed)) == at_epoch(make(), 0)
    with pytest.raises(MemoryError, match=r"^no room for the plan$"):
        next(loop)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^sampler is a list, not a BucketBatchSampler$"):
        Feed(DATA, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^data is a generator without __getitem__ and __len__; pass a map-style "):
        Feed((i for i in range(3)), make())
    with pytest.raises(ValueError, match=r"^loader.dataset has 2 samples, the sampler was built from 60 lengths; "):
        Feed([[1], [2]], make())
    with pytest.raises(ValueError, match=r"^the collator pads rows of "):
        Feed(Rows(), make(), collate=PadCollator(pad_to_multiple_of=64))
    for name in ("n_threads", "n_ahead", "max_bytes"):
        with pytest.raises(ValueError, match=rf"^{name} = 0 is outside \[1, 9223372036854775807\]; "):
            Feed(DATA, make(), **{name: 0})
    feed = Feed(Rows(), make(), collate=list)
    with pytest.raises(TypeError, match=r"^collate returned a list, not a mapping; return a dict of tensors by key$"):
        next(iter(feed))
    with pytest.raises(ValueError, match=r"^devices has 1 entries for 2 consumers; give one for each$"):
        feed.consumers(2, devices=["cpu"])
    with pytest.raises(ValueError, match=r"^n_epochs = 0 is outside \[1, 9223372036854775807\]; "):
        feed.epochs(0)


@pytest.mark.parametrize("copies", [False, True])
def test_a_batch_that_does_not_reach_its_device_is_not_lost(copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, n_calls = Placement.receive, 0

    def failing(placement: Placement, sent: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            raise RuntimeError("the device is full")
        return receive(placement, sent)

    monkeypatch.setattr(Placement, "receive", failing)
    feed = Feed(DATA, make())
    (loop,) = feed.consumers(1, copies=copies)
    before = taken(loop, 3)
    with pytest.raises(RuntimeError, match=r"^the device is full$"):
        next(loop)
    assert feed.state_dict()["position"] == 3
    if not copies:
        with pytest.raises(RuntimeError, match=r"^another consumer of this feed has met an error$"):
            next(loop)
    assert before + taken(feed.epochs(1)) == at_epoch(make(), 0)


# Endings.


def test_leaving_the_loop_ends_the_threads() -> None:
    feed = Feed(DATA, make())
    for batch in feed.epochs(5):
        assert feed_threads()
        if batch.info.step == 3:
            break
    assert becomes_true(lambda: not feed_threads())
    assert feed.state_dict()["position"] == 4


def test_an_error_in_the_loop_ends_the_threads() -> None:
    feed = Feed(DATA, make())
    error: ZeroDivisionError | None = None
    try:
        for batch in feed.epochs(5):
            batch["input_ids"] = 1 / 0
    except ZeroDivisionError as raised:
        error = raised  # Kept with its traceback, as a debugger does.
    assert becomes_true(lambda: not feed_threads())
    assert error is not None


@pytest.mark.parametrize("end", ["close", "with", "delete", "exhaust"])
def test_every_way_out_ends_the_threads(end: str) -> None:
    feed = Feed(DATA, make())
    loop = iter(feed)
    next(loop)
    if end == "close":
        loop.close()
        loop.close()
        assert list(loop) == []
    elif end == "with":
        with loop:
            next(loop)
    elif end == "exhaust":
        taken(loop)
        assert list(loop) == []
    else:
        del loop, feed
    assert becomes_true(lambda: not feed_threads())


def test_a_feed_that_nobody_holds_ends_while_its_threads_work() -> None:
    class Slow(Rows):
        def __getitem__(self, sample: int) -> dict[str, Any]:
            time.sleep(0.01)
            return super().__getitem__(sample)

    loop = Feed(Slow(), make(), n_threads=3).epochs(9)
    next(loop)
    assert len(feed_threads()) > 1
    del loop
    assert becomes_true(lambda: not feed_threads())


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
from test_feed import DATA, Feed, make
feed, n = Feed(DATA, make()), 0
try:
    for batch in feed.epochs(10**6):
        n += 1
        if n == 5:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
except KeyboardInterrupt:
    ended = time.monotonic()
    while any(thread.name.startswith("bucketshuffle-feed") for thread in threading.enumerate()):
        assert time.monotonic() < ended + 1
        time.sleep(0.001)
    print("interrupted", feed.counters().n_batches - n)
"""


def test_ctrl_c_ends_the_loop_and_the_threads() -> None:
    code = INTERRUPTED.format(tests=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    # A batch may be delivered and not yet bound to its name.
    assert done.stdout.strip() in ("interrupted 0", "interrupted 1"), done.stdout + done.stderr
    assert done.returncode == 0


def test_a_process_ends_although_a_loop_stands_still() -> None:
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    code += "from test_feed import DATA, Feed, make\nloop = Feed(DATA, make()).epochs(9)\nnext(loop)\nprint('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def _in_fork(loop: Any, feed: Feed, answers: Any) -> None:
    try:
        next(loop)
    except RuntimeError as error:
        answers.put(str(error))
    feed.batch_sampler.reset()
    answers.put(taken(iter(feed)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_loop_does_not_go_on_in_a_fork_and_a_new_one_does() -> None:
    feed = Feed(DATA, make())
    loop = iter(feed)
    next(loop)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_fork, args=(loop, feed, answers))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert answers.get() == (
        f"the feed was begun in process {os.getpid()}, whose threads do not exist in process {child.pid}; begin the "
        "loop over the feed after the fork"
    )
    assert answers.get() == at_epoch(make(), 0)
    assert taken(loop) == at_epoch(make(), 0)[1:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_plan_under_way_at_a_fork_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, go_on, parent = Feed(DATA, make()), threading.Event(), os.getpid()
    batches = feed.batch_sampler.schedule.batches

    def slow_in_parent(epoch: int, *arguments: Any) -> Any:
        if epoch == 1 and os.getpid() == parent:
            go_on.wait(60)
        return batches(epoch, *arguments)

    monkeypatch.setattr(feed.batch_sampler.schedule, "batches", slow_in_parent)
    loop = feed.epochs(2)
    taken(loop, len(make()))  # Epoch 1 is being planned.
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(len(taken(feed.epochs(2)))))
    child.start()
    child.join(20)
    child.kill()
    go_on.set()
    assert child.exitcode == 0
    assert answers.get() == len(taken(loop)) == len(make())


def test_a_feed_pickles_and_its_loop_does_not() -> None:
    feed = Feed(DATA, make())
    loop = iter(feed)
    taken(loop, 3)
    again = pickle.loads(pickle.dumps(feed))
    assert taken(again.epochs(1)) == at_epoch(make(), 0)[3:]
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(loop)


# Several consumers.


def on_threads(loops: list[Any], work: Callable[[int, FeedBatch], None] = lambda _, __: None) -> list[list[list[int]]]:
    got: list[list[list[int]]] = [[] for _ in loops]

    def consume(i: int) -> None:
        for batch in loops[i]:
            got[i].append(samples_of(batch))
            work(i, batch)

    threads = [threading.Thread(target=consume, args=(i,)) for i in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return got


@pytest.mark.parametrize("n", [2, 5])
def test_each_batch_goes_to_exactly_one_of_several_consumers(n: int) -> None:
    feed = Feed(DATA, make())
    places: list[list[int]] = [[] for _ in range(n)]

    def work(i: int, batch: FeedBatch) -> None:
        places[i].append(batch.info.position.epoch * len(feed) + batch.info.step)
        time.sleep(0.001 * i)

    got = on_threads(feed.consumers(n, n_epochs=2), work)
    whole = at_epoch(make(), 0) + at_epoch(make(), 1)
    assert sorted(place for of_one in places for place in of_one) == list(range(len(whole)))
    assert all(of_one == sorted(of_one) for of_one in places)
    assert [[whole[place] for place in of_one] for of_one in places] == got
    assert feed.state_dict()["epoch"] == 2


def test_threads_may_share_one_loop() -> None:
    loop = Feed(DATA, make()).epochs(2)
    got = on_threads([loop] * 4)
    assert sorted(batch for batches in got for batch in batches) == sorted(at_epoch(make(), 0) + at_epoch(make(), 1))


@pytest.mark.parametrize("slow", [0, 1])
def test_copies_go_to_all_consumers_in_planned_order(slow: int) -> None:
    feed = Feed(DATA, make(), n_ahead=3)
    n_taken, gaps = [0, 0, 0], []

    def work(i: int, _: FeedBatch) -> None:
        n_taken[i] += 1
        gaps.append(max(n_taken) - min(n_taken))
        if i == slow:
            time.sleep(0.002)

    whole = at_epoch(make(), 0) + at_epoch(make(), 1)
    assert on_threads(feed.consumers(3, n_epochs=2, copies=True), work) == [whole] * 3
    assert 1 <= max(gaps) <= 3 + 1  # The loop counts a batch a moment after it has it.
    assert feed.state_dict()["epoch"] == 2


def test_the_state_counts_what_all_copies_have() -> None:
    feed = Feed(DATA, make(), n_ahead=4)
    first, second = feed.consumers(2, copies=True)
    taken(first, 3)
    assert feed.state_dict()["position"] == 0
    taken(second, 2)
    assert feed.state_dict()["position"] == 2
    second.close()
    assert feed.state_dict()["position"] == 3
    assert taken(first) == at_epoch(make(), 0)[3:]


def test_a_copy_whose_thread_ended_is_an_error_and_no_wait_for_ever() -> None:
    feed = Feed(DATA, make(), n_ahead=2)
    first, second = feed.consumers(2, copies=True)
    thread = threading.Thread(target=next, args=(second,))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError) as caught:
        taken(first)
    assert str(caught.value) == (
        "consumer 0 is 2 batches in front of consumer 1, which ended without its last batches; give each a thread "
        "that takes all batches, or close() the one that stops"
    )


def test_copies_on_one_thread_are_taken_in_turns() -> None:
    feed = Feed(DATA, make(), n_ahead=2)
    first, second = feed.consumers(2, copies=True)
    pairs = zip(first, second, strict=True)
    assert [samples_of(one) for one, other in pairs if samples_of(one) == samples_of(other)] == at_epoch(make(), 0)
    feed.set_epoch(1)
    first, second = feed.consumers(2, copies=True)
    taken(second, 1)
    with pytest.raises(RuntimeError, match="consumer 0 is 2 batches in front of consumer 1, which runs on the same"):
        taken(first)


@pytest.mark.parametrize("copies", [False, True])
def test_an_error_reaches_every_consumer(copies: bool) -> None:
    loops = Feed(Rows(fail_at=17), make()).consumers(3, copies=copies)
    errors: list[str] = []

    def consume(loop: Any) -> None:
        try:
            taken(loop)
        except Exception as error:
            errors.append(str(error))

    threads = [threading.Thread(target=consume, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(errors) == ["another consumer of this feed has met an error"] * 2 + ["the disk is gone"]


@pytest.mark.parametrize("copies", [False, True])
def test_the_threads_end_with_the_last_consumer(copies: bool) -> None:
    first, second = Feed(DATA, make()).consumers(2, copies=copies)
    next(first)
    first.close()
    next(second)
    assert feed_threads()
    second.close()
    assert becomes_true(lambda: not feed_threads())


# Devices.


def test_batches_are_placed_on_their_device() -> None:
    batch = next(iter(Feed(DATA, make(), device="meta")))
    assert {value.device.type for value in batch.values()} == {"meta"}
    first, second = Feed(DATA, make()).consumers(2, devices=["meta", "cpu"])
    assert next(first)["input_ids"].device.type == "meta"
    assert samples_of(next(second)) == at_epoch(make(), 0)[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("data", [DATA, Rows()], ids=["preloaded", "map-style"])
def test_batches_on_a_cuda_device_hold_the_same_values(data: Any) -> None:
    for batch, samples in zip(Feed(data, make(), device="cuda").epochs(20), at_epoch(make(), 0) * 20, strict=True):
        doubled = batch["input_ids"] * 2  # On the current stream, right away.
        if batch.info.position.epoch == 0:
            assert samples_of(batch) == samples
        expected = DATA.batch(batch["sample_indices"].cpu())["input_ids"] * 2
        assert torch.equal(doubled.cpu(), expected)


# As a loader.


def test_check_loader_knows_a_feed() -> None:
    feed = Feed(DATA, make())
    check_loader(feed, n_batches=3)
    assert taken(iter(feed)) == at_epoch(make(), 0)
    with pytest.raises(ValueError, match="divides the batches among 2 ranks, but 1 train"):
        check_loader(Feed(DATA, make(rank=0, world_size=2)))


def test_a_map_style_data_set_gets_a_collator_that_pads_as_planned() -> None:
    sampler = make(padded_lengths=3)
    for batch in Feed(Rows(), sampler):
        assert batch["input_ids"].shape[1] == batch.info.padded_length


def test_what_collate_returns_is_kept_as_it_is() -> None:
    feed = Feed(Rows(), make(), collate=lambda items: {"n": len(items), "texts": ["a"], "x": torch.ones(2)})
    batch = next(iter(feed))
    assert (batch["n"], batch["texts"], batch["x"].tolist()) == (batch.info.n_samples, ["a"], [1.0, 1.0])
    assert isinstance(batch, dict)
    assert FeedBatch({"a": 1}).info is None


def test_stress() -> None:
    """Loops that are left at random places, over and over, on small queues."""
    rng = np.random.default_rng(0)
    sampler = BucketBatchSampler(SMALL, token_budget=60, seed=1)
    reference = [at_epoch(BucketBatchSampler(SMALL, token_budget=60, seed=1), epoch) for epoch in range(40)]
    whole = [batch for epoch in reference for batch in epoch]
    feed = Feed(DATA, sampler, n_threads=3, n_ahead=3)
    got: list[list[int]] = []
    while len(got) < len(whole):
        feed.n_ahead, feed.n_threads = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        got += taken(feed.epochs(40), int(rng.integers(1, 60)))
    assert got == whole


@pytest.mark.parametrize("copies", [False, True])
def test_an_interrupt_at_any_call_leaves_nothing_locked(copies: bool) -> None:
    """Ctrl-C may come right after a lock was taken, in Python code that would release it later."""

    class InterruptError(Exception):
        pass

    left = 0

    def interrupt(_frame: object, event: str, _of: object) -> None:
        nonlocal left
        left -= event in ("call", "c_return")  # Where the interpreter looks for signals.
        if left < 0:
            sys.setprofile(None)
            raise InterruptError

    whole = [batch for epoch in range(3) for batch in at_epoch(make(), epoch)]
    gc.collect()
    gc.freeze()  # What is there already need not be looked at 500 times.
    for n_calls in range(500):
        feed, n, left = Feed(DATA, make(), n_ahead=2, n_threads=1), 0, n_calls
        sys.setprofile(interrupt)
        try:
            for _ in feed.consumers(1, n_epochs=3, copies=copies)[0]:
                n += 1
                if n == 9:
                    break
        except InterruptError:
            pass
        finally:
            sys.setprofile(None)
        # Another thread collects what is left, and another feed goes on, whatever was interrupted.
        collects = threading.Thread(target=gc.collect, daemon=True)
        collects.start()
        collects.join(10)
        assert not collects.is_alive(), n_calls
        again = Feed(DATA, make())
        again.load_state_dict(feed.state_dict())
        assert taken(again.epochs(3), 3) in (whole[n : n + 3], whole[n + 1 : n + 4]), n_calls
    gc.unfreeze()


def test_an_interrupt_between_any_two_batches_leaves_a_true_state() -> None:
    """A signal handler that raises, at random moments; the state never runs ahead of the loop by more than the batch in
    hand."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread alone")

    class AlarmError(Exception):
        pass

    def ring(*_: Any) -> None:
        raise AlarmError

    previous = signal.signal(signal.SIGALRM, ring)
    whole = [batch for epoch in range(200) for batch in at_epoch(make(), epoch)]
    try:
        for round_ in range(40):
            feed, n = Feed(DATA, make(), n_ahead=2), 0
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * round_)
                for _ in feed.epochs(200):
                    n += 1
                time.sleep(10)  # The signal comes here if not before.
            except AlarmError:
                pass
            except RuntimeError as error:  # threading.Condition, interrupted while it takes its lock back
                if not isinstance(error.__context__, AlarmError):
                    raise
            assert feed.counters().n_batches - n in (0, 1)
            again = Feed(DATA, make())
            again.load_state_dict(feed.state_dict())
            assert taken(again.epochs(200), 5) in (whole[n : n + 5], whole[n + 1 : n + 6])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
