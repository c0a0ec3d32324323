"""What an installed wheel must do without the source tree; run by .ci/wheel, not by pytest."""

import sys
from pathlib import Path

import bucketshuffle
from bucketshuffle.data import dflash902k

package = Path(bucketshuffle.__file__).parent
assert "site-packages" in str(package), package
assert {"py.typed", "_core.pyi"} <= {path.name for path in package.iterdir()}
assert "torch" not in sys.modules
plan = bucketshuffle.pack_epoch(dflash902k(), seed=0)
assert plan.stats.padding_ratio <= 1.011, plan
print(f"wheel {bucketshuffle.__version__} on Python {sys.version.split()[0]}: {plan}")
