"""What an installed wheel must do without the source tree; run by .ci/wheel, not by pytest."""

import subprocess
import sys
import tempfile
from pathlib import Path

import bucketshuffle
import numpy as np
from bucketshuffle.data import dflash902k

package = Path(bucketshuffle.__file__).parent
assert "site-packages" in str(package), package
assert {"py.typed", "_core.pyi"} <= {path.name for path in package.iterdir()}
assert "torch" not in sys.modules
plan = bucketshuffle.pack_epoch(dflash902k(), seed=0)
assert plan.stats.padding_ratio <= 1.011, plan
with tempfile.TemporaryDirectory() as folder:
    np.save(f"{folder}/lengths.npy", dflash902k()[:10_000])
    command = [f"{sys.prefix}/bin/bucketshuffle", "report", f"{folder}/lengths.npy"]  # with NumPy alone
    assert "| bucketshuffle |" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
print(f"wheel {bucketshuffle.__version__} on Python {sys.version.split()[0]}: {plan}")
