"""Runs a script and leaves without tearing the interpreter down.

torch 2.15 with gloo and DDP aborts in that teardown now and then ("terminate called without an active exception": 3 of
12 runs of a script that imports nothing but torch), after the script's last line. An error in the script still fails.
"""

import os
import runpy
import sys

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
