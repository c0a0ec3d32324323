"""A plan that the system or the user ends: refused memory and signals are exceptions, and the process lives."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are those of Linux")

# Under ever higher limits, until the work gets through; prints how it ended under each.
REFUSED_MEMORY = """
import resource, sys
import numpy as np
from bucketshuffle import Planner, pack_epoch

n = 1_000_000
lengths = 1 + np.arange(n) * 7_919 % {longest}
options = dict(token_budget={longest} + 7, window=2, {options})
def work(lengths=lengths):
    planner = Planner(lengths, admitted=lengths % 5 > 0, **options)
    planner.n_batches(), planner.plan(0, 1).stats, pack_epoch(lengths, 0, **options)

work(lengths[:100])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for more in range(0, 400 << 20, 8 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    try:
        work()
    except MemoryError as error:
        print(error)
    else:
        print("planned")
        break
"""


@pytest.mark.parametrize(
    ("longest", "options"),
    [
        (8_191, ""),
        (8_191, "boundaries=128, threads=2"),
        (8_191, "constant_count=True, threads=2"),
        (8_191, "strategy='random', constant_count=True"),
        (8_191, "padding_target=0.01, overlong='keep', max_batch_size=4"),
        (10**9, "threads=2"),
        (10**9, "strategy='sorted'"),
        (10**9, "boundaries=64, padded_lengths=64"),
    ],
)
def test_refused_memory_is_a_memory_error_wherever_it_is_refused(longest, options):
    script = REFUSED_MEMORY.format(longest=longest, options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *refused, last = done.stdout.splitlines()
    assert last == "planned"
    assert any(line.startswith("there is no memory for an array of ") for line in refused), refused


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from bucketshuffle import Planner, pack_epoch

lengths = np.random.default_rng(0).integers(1, {longest}, 8_000_000)
options = dict(token_budget=10**9, {options})
work = lambda: {work}
start = time.perf_counter()
work()
whole = time.perf_counter() - start
sent = []
def interrupt():
    time.sleep(0.2 * whole)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    work()
except KeyboardInterrupt:
    print((time.perf_counter() - sent[0]) / whole)
"""


@pytest.mark.parametrize(
    ("longest", "options", "work"),
    [
        (8_192, "threads=1", "pack_epoch(lengths, 0, **options)"),
        (8_192, "threads=2", "Planner(lengths, **options).n_batches()"),
        (8_192, "strategy='random', threads=1", "pack_epoch(lengths, 0, **options)"),
        (8_192, "boundaries=4, constant_count=True", "Planner(lengths, **options)"),
        (10**9, "threads=1", "Planner(lengths, **options)"),
    ],
)
def test_a_signal_ends_a_plan(longest, options, work):
    script = INTERRUPTED.format(longest=longest, options=options, work=work)
    shares = []
    for _ in range(3):  # A busy machine may stretch what comes after the signal.
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shares.append(float(done.stdout))
        # Without a look at signals it takes the rest of the plan, about 0.8 of the whole.
        if shares[-1] < 0.6:
            return
    raise AssertionError(shares)


HANDLED = """
import signal
import numpy as np
from bucketshuffle import Planner

class Stop(Exception): ...
def stop(*_):
    raise Stop("by the handler")
signal.signal(signal.SIGALRM, stop)
planner = Planner(np.full(2_000_000, 100), threads=2)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    while True:
        planner.plan(0)
except Stop as error:
    print(error, len(planner.plan(0)))
"""


def test_what_a_handler_raises_arrives_and_the_planner_lives_on():
    done = subprocess.run([sys.executable, "-c", HANDLED], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[:3]) == (0, ["by", "the", "handler"]), done.stderr
