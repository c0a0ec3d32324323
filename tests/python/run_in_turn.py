"""Runs a script several times, on the ranks that each run asks for, and imports what it imports once.

Every rank of every run is forked from a process that has only imported modules: the trainers take seconds to import and
train the examples in tenths of one.

    python run_in_turn.py script.py '[[n_ranks, ["--option", "value"]], ...]'
"""

import ast
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from processes import free_port


def import_what(script: Path) -> None:
    imports = [node for node in ast.parse(script.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imports, []), str(script), "exec"), {})


def fork_rank(rank: int, n_ranks: int, port: int, script: Path, arguments: list[str]) -> int:
    if (child := os.fork()) != 0:
        return child
    status = 1
    try:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n_ranks, "LOCAL_WORLD_SIZE": n_ranks}
        os.environ |= {name: str(value) for name, value in (ranks | {"MASTER_PORT": port}).items()}
        os.environ["MASTER_ADDR"] = "localhost"
        sys.argv = [str(script), *arguments]
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # Without tearing the interpreter down: run_then_exit.py says why.


if __name__ == "__main__":
    script = Path(sys.argv[1])
    runs = json.loads(sys.argv[2])
    import_what(script)
    importlib.import_module("torch._dynamo")  # Optimizers and DDP import it when they are made: two seconds a rank.
    for n_ranks, arguments in runs:
        port = free_port()
        children = [fork_rank(rank, n_ranks, port, script, arguments) for rank in range(n_ranks)]
        for child in children:
            _, status = os.waitpid(child, 0)
            if status != 0:
                sys.exit(f"a rank of {arguments} failed")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
