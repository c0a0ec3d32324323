"""Which single changes of the code does no test notice? `./dev mutants` runs this.

cargo-mutants changes the core and runs the Rust tests. What these miss, and every change of the binding, is built into
the extension module and tried by the Python tests. mutmut changes the Python layer. All of it happens in copies in the
temporary folder. A survivor is a promise without a test, or stands in tests/EQUIVALENT_MUTANTS.md with its reason.

    ./dev mutants                      what the working tree changes against `main`
    ./dev mutants --all                everything: hours
    ./dev mutants src/pack.rs ...      these files whole
    ./dev mutants --all --one-in 20    a random part of them; TEST_SEED=n repeats it
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "target" / "tools"
PACKAGE = Path("python") / "bucketshuffle"
ENVIRONMENT = {**os.environ, "HYPOTHESIS_PROFILE": "mutants", "PROPTEST_CASES": "64", "OMP_NUM_THREADS": "1"}

# They start processes or trainers, or test a stack that mutmut's own frames change.
SLOW_FILES = [
    "test_trainers.py",
    "test_examples.py",
    "test_examples_fields.py",
    "test_recipes_gradients.py",
    "test_dflash.py",
    "test_command_line.py",
    "test_needs_numpy_alone.py",
    "test_docs.py",
    "test_oracle.py",
    "test_page.py",
]
SLOW_TESTS = (
    "accelerate or unknown_keys or spawn or forkserver or tensor_parallelism or permutations_of_a_bucket"
    " or any_byte_changed or fit_in_memory or depend_on_threads or one_line_and_workers or another_process"
    " or truncated_file or stateful_data_loader_resumes or of_a_recipe"
)
BINDING = ["--file=src/python.rs", "--file=src/python/*.rs"]
TESTS_OF_THE_CORE = ["golden", "errors", "rng_vectors", "cases_planning", "oracle", "properties"]
TESTS_OF_COLLATE = ["values", "dataset", "collate", "padded_lengths"]


def run(*command: object, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], check=check, text=True, **options)


def copy(folder: Path) -> Path:
    """The working tree without what git ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in run(*listed, cwd=ROOT, stdout=subprocess.PIPE).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def equivalent() -> set[tuple[str, str]]:
    """(file, changed line) of each entry of EQUIVALENT_MUTANTS.md."""
    text = (ROOT / "tests" / "EQUIVALENT_MUTANTS.md").read_text()
    return set(re.findall(r"^\* `(\S+)` `(.+?)`: ", text, re.MULTILINE))


def changed_line(diff: str) -> str:
    """What a diff adds, in one line; where it replaces a whole function, what it puts there."""
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    text = " ".join(added).replace("/* ~ changed by cargo-mutants ~ */", "")
    return " ".join(text.split())


class Tally:
    def __init__(self) -> None:
        self.n_caught, self.n_equivalent, self.survivors = 0, 0, []
        self.known = equivalent()

    def add(self, file: str, name: str, diff: str, caught: bool) -> None:
        if caught:
            self.n_caught += 1
        elif (file, changed_line(diff)) in self.known:
            self.n_equivalent += 1
        else:
            self.survivors.append(name)
            print(f"SURVIVED {name}\n    {changed_line(diff)}", flush=True)

    def report(self, layer: str) -> bool:
        n_real = self.n_caught + len(self.survivors)
        share = f"{self.n_caught / n_real:.1%}" if n_real else "none"
        print(f"{layer}: {self.n_caught} of {n_real} mutants caught ({share}), {self.n_equivalent} equivalent")
        return not self.survivors


def mutate_rust(selection: list[str], work: Path) -> bool:
    tally = Tally()
    out = work / "rust"
    command = [TOOLS / "bin" / "cargo-mutants", "mutants", "--dir", ROOT, "--output", out, "--colors=never"]
    code = run(*command, *selection, check=False, env=ENVIRONMENT).returncode
    if code not in (0, 2, 3):  # All caught; some missed; some timed out.
        raise SystemExit(f"cargo-mutants failed with {code}")
    results = out / "mutants.out"
    left = []
    outcomes = json.loads((results / "outcomes.json").read_text())["outcomes"] if results.exists() else []
    for outcome in outcomes:
        if isinstance(outcome["scenario"], str) or outcome["summary"] == "Unviable":
            continue
        mutant = outcome["scenario"]["Mutant"]
        diff = (results / outcome["diff_path"]).read_text()
        if outcome["summary"] == "MissedMutant":
            left.append((mutant["file"], mutant["name"], diff))
        else:
            tally.add(mutant["file"], mutant["name"], diff, caught=True)
    files = [word for word in selection if word.startswith("--file")]
    of_binding = [file for file in files or BINDING if "src/python" in file]
    if of_binding:
        listing = ["--list", "--json", "--diff", "--no-config", *of_binding, *set(selection).difference(files)]
        listed = run(command[0], "mutants", "--dir", ROOT, *listing, stdout=subprocess.PIPE).stdout
        left += [(mutant["file"], mutant["name"], mutant["diff"]) for mutant in json.loads(listed)]
    tree = copy(work / "extension")
    for file, name, diff in left:
        caught = (file, changed_line(diff)) not in tally.known and python_notices(tree, file, diff)
        if caught is not None:
            tally.add(file, name, diff, caught)
    return tally.report("Rust core")


def python_notices(tree: Path, file: str, diff: str) -> bool | None:
    """Whether a Python test fails with the change built in; None where it does not compile."""
    run("patch", "--silent", file, input=diff, cwd=tree)
    build = ["cargo", "build", "--profile=mutants", "--locked", "--quiet", "--lib", "--features=python"]
    environment = {**ENVIRONMENT, "PYO3_PYTHON": sys.executable, "CARGO_PROFILE_MUTANTS_OPT_LEVEL": "1"}
    try:
        if run(*build, check=False, cwd=tree, env=environment, stderr=subprocess.DEVNULL).returncode:
            return None
        shutil.copy(tree / "target" / "mutants" / "libbucketshuffle.so", tree / PACKAGE / "_core.abi3.so")
        names = TESTS_OF_COLLATE if "collate" in file else TESTS_OF_THE_CORE
        if file.startswith("src/python"):
            names = TESTS_OF_THE_CORE + TESTS_OF_COLLATE
        tests = [f"tests/python/test_{name}.py" for name in names]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(tree / "python")}
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-k", f"not ({SLOW_TESTS})", *tests]
        quiet = {"check": False, "stdout": subprocess.DEVNULL, "timeout": 300}
        try:
            return run(*pytest, cwd=tree, env=environment, **quiet).returncode != 0
        except subprocess.TimeoutExpired:
            return True
    finally:
        run("patch", "--silent", "--reverse", file, input=diff, cwd=tree)


def mutate_python(patterns: list[str], work: Path, one_in: int) -> bool:
    """mutmut names mutants by module, so the package lies at the root of the copy."""
    tally = Tally()
    tree = copy(work / "python")
    shutil.move(tree / PACKAGE, tree / "bucketshuffle")
    shutil.copy(ROOT / PACKAGE / "_core.abi3.so", tree / "bucketshuffle")
    arguments = ["--timeout=60", *(f"--ignore=tests/python/{file}" for file in SLOW_FILES), f"-knot ({SLOW_TESTS})"]
    lines = ["[mutmut]", "source_paths=bucketshuffle", "timeout_constant=2", "timeout_multiplier=5", "also_copy="]
    lines += [f"    {name}" for name in ("examples", "docs", "README.md", "CHANGELOG.md", "benches")]
    lines += ["pytest_add_cli_args_test_selection=", "    tests/python"]
    (tree / "setup.cfg").write_text("\n".join([*lines, "pytest_add_cli_args=", *(f"    {word}" for word in arguments)]))
    paths = [tree / "mutants", TOOLS / "mutmut"]
    paths[0].mkdir()  # Python would remember that it was not there.
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    mutmut = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()"]

    def run_mutmut(names: list[str]) -> None:
        if run(*mutmut, "run", "--max-children=2", *names, check=False, cwd=tree, env=environment).returncode:
            raise SystemExit("mutmut failed")

    if one_in > 1:
        run_mutmut(["bucketshuffle.options.x_flag__mutmut_1"])  # Makes all mutants and finds which tests call them.
        metas = [json.loads(meta.read_text()) for meta in sorted((tree / "mutants").rglob("*.meta"))]
        names = [name for meta in metas for name in meta["exit_code_by_key"]]
        names = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        seed = int(os.environ.get("TEST_SEED", time.time()))
        print(f"one in {one_in} of {len(names)} mutants of the Python layer, TEST_SEED={seed}")
        patterns = random.Random(seed).sample(names, len(names) // one_in)
    run_mutmut(patterns)
    for meta in sorted((tree / "mutants").rglob("*.meta")):
        source = meta.relative_to(tree / "mutants").with_suffix("")
        file = str(Path("python") / source)
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is None:
                continue
            survived = code in (0, 33)  # 33: no test calls it.
            diff = ""
            if survived:
                diff = run(*mutmut, "show", name, cwd=tree, env=environment, stdout=subprocess.PIPE).stdout
            if survived and (file, changed_line(diff)) not in tally.known:
                survived = not slow_tests_notice(tree, tree / source, [*mutmut, "apply", name])
            tally.add(file, name, diff, caught=not survived)
    return tally.report("Python layer")


def slow_tests_notice(tree: Path, source: Path, apply: list[str]) -> bool:
    """Whether one of the tests that mutmut leaves out fails with the mutant in the source itself."""
    original = source.read_text()
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tree), str(TOOLS / "mutmut")])}
    run(*apply, cwd=tree, env=environment)
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-k", SLOW_TESTS, "tests/python"]
    pytest += [f"--ignore=tests/python/{file}" for file in SLOW_FILES]
    try:
        return run(*pytest, check=False, cwd=tree, env=environment, stdout=subprocess.DEVNULL).returncode != 0
    finally:
        source.write_text(original)


def functions_in(file: str, lines: set[int] | None = None) -> list[str]:
    """mutmut's patterns for the functions of a file, or those that hold one of `lines`."""
    module = file.removeprefix("python/").removesuffix(".py").replace("/", ".")
    found = []
    for outer in ast.parse((ROOT / file).read_text()).body:
        prefix = f"xǁ{outer.name}ǁ" if isinstance(outer, ast.ClassDef) else "x_"
        for node in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
            if not isinstance(node, ast.FunctionDef):
                continue
            if lines is None or lines.intersection(range(node.lineno, node.end_lineno + 1)):
                found.append(f"{module}.{prefix}{node.name}__mutmut_*")
    return found


def changed_functions(diff: str) -> list[str]:
    found = []
    for part in re.split(r"^diff --git .*$", diff, flags=re.MULTILINE):
        file = re.search(r"^\+\+\+ b/(python/\S+\.py)$", part, re.MULTILINE)
        lines = {
            line
            for start, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", part, re.MULTILINE)
            for line in range(int(start), int(start) + int(count or 1))
        }
        if file:
            found += functions_in(file[1], lines)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="source files to change, whole")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--one-in", type=int, default=1, help="try a random part")
    parser.add_argument("--base", default="main", help="what the working tree is compared with")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        work = Path(folder)
        if args.all:
            rust, python = [], ["bucketshuffle.*"]
        elif args.files:
            rust = [f"--file={file}" for file in args.files if file.endswith(".rs")]
            python = [pattern for file in args.files if file.endswith(".py") for pattern in functions_in(file)]
        else:
            diff = run("git", "diff", "-U0", "--merge-base", args.base, cwd=ROOT, stdout=subprocess.PIPE).stdout
            (work / "diff").write_text(diff)
            rust = [f"--in-diff={work / 'diff'}"] if re.search(r"^\+\+\+ b/src/", diff, re.MULTILINE) else []
            python = changed_functions(diff)
        if args.one_in > 1:
            shards = [f"--shard=0/{args.one_in}", "--sharding=round-robin"]
            rust = [*rust, *shards] if rust or args.all else []
        good = True
        if rust or args.all:
            good &= mutate_rust(rust, work)
        if python:
            good &= mutate_python(python, work, args.one_in)
    sys.exit(not good)


if __name__ == "__main__":
    main()
