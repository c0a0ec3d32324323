"""`bucketshuffle lengths` and `pack`: the same samples from every kind of source, and one clear line for a bad one."""

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from bucketshuffle.cli import main
from bucketshuffle.data import json_lines, npy, tables
from bucketshuffle.data.saved import read_fields

ROWS = [[5, 6, 7], [], [8], [9, 10, 11, 12], [13, 2**20]]
TEXTS = ["hello world", "", "hello", "world hello hello world", "é x"]
EMPTY = pa.table({"input_ids": pa.array([], pa.list_(pa.int64()))})
TABLE: dict[str, list[object]] = {
    "input_ids": ROWS,
    "labels": [[-100, *row[1:]] if row else [] for row in ROWS],
    "weight": [0.5, 1.5, 2.5, 3.5, 4.5],
    "n_tokens": [len(row) for row in ROWS],
    "text": TEXTS,
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2, "[END]": 3}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 3)])
    made.enable_truncation(2)  # files of models have both set
    made.enable_padding(length=9)
    made.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def samples() -> list[dict[str, object]]:
    return [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]


def write(kind: str, folder: Path) -> Path:
    """The table as a source of this kind."""
    table = pa.table(TABLE)
    path = folder / "data"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    elif kind == "folder of parquet":
        path.mkdir()
        (path / "README.md").write_text("of no interest")
        pq.write_table(table.slice(0, 2), path / "0.parquet")
        pq.write_table(table.slice(2), path / "1.parquet")
    elif kind == "arrow file":
        pyarrow.feather.write_feather(table, path, compression="zstd", chunksize=2)
    elif kind == "arrow stream":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    elif kind == "json lines":
        jsonl(path, samples())
        path.write_text("\n" + path.read_text().replace("\n", "\n \n") + "\n")  # blank lines are no samples
    elif kind == "json lines without a last newline":
        path.write_text(jsonl(path, samples()).read_text().rstrip())
    elif kind == "folder of gzip":
        path.mkdir()
        for i, sample in enumerate(samples()):
            (path / f"{i}.jsonl.gz").write_bytes(gzip.compress(json.dumps(sample).encode()))
    elif kind == "zstd":
        with pa.output_stream(path, compression="zstd") as file:
            file.write(jsonl(folder / "plain", samples()).read_bytes())
    elif kind == "hugging face":
        datasets = pytest.importorskip("datasets")
        reverse = datasets.Dataset.from_dict({name: values[::-1] for name, values in TABLE.items()})
        reverse.select([4, 3, 2, 1, 0]).save_to_disk(path)
    return path


KINDS = [
    "parquet",
    "folder of parquet",
    "arrow file",
    "arrow stream",
    "json lines",
    "json lines without a last newline",
    "folder of gzip",
    "zstd",
    "hugging face",
]


@pytest.fixture(params=[1 << 23, 40], ids=["one batch", "many batches"])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "_BLOCK_BYTES", request.param)
    for module in (npy, tables):
        monkeypatch.setattr(module, "BATCH_BYTES", request.param)


@pytest.mark.usefixtures("batch_bytes")
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_lengths(kind: str, tmp_path: Path, capsys, tokenizer: str) -> None:  # type: ignore[no-untyped-def]
    source, output = str(write(kind, tmp_path)), tmp_path / "lengths.npy"
    capsys.readouterr()
    for words in ([], ["--column", "labels"], ["--column", "n_tokens"]):
        assert main(["lengths", source, "-o", str(output), *words]) == 0
        assert np.load(output).tolist() == [3, 0, 1, 4, 2]
        assert np.load(output).dtype == np.uint8
        captured = capsys.readouterr()
        assert captured.out == f"{output}: 5 samples, 10 tokens, 0 to 4\n"
        assert captured.err == ""
    words = ["lengths", source, "-o", str(output), "--column", "text", "--tokenizer"]
    assert main([*words, tokenizer]) == 0
    assert np.load(output).tolist() == [3, 1, 2, 5, 3]
    assert main([*words, str(tmp_path), "--no-special-tokens"]) == 0  # the folder of the file will do
    assert np.load(output).tolist() == [2, 0, 1, 4, 2]


@pytest.mark.usefixtures("batch_bytes")
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_packs_the_same_data(kind: str, tmp_path: Path, capsys, tokenizer: str) -> None:  # type: ignore[no-untyped-def]
    source, output = str(write(kind, tmp_path)), tmp_path / "data.safetensors"
    capsys.readouterr()
    columns = [word for name in ("input_ids", "labels", "weight") for word in ("--column", name)]
    assert main(["pack", source, "-o", str(output), *columns, "--dtype", "int32"]) == 0
    fields = {name: field.values for name, field in read_fields(output, verify=True).items()}
    assert fields["offsets"].tolist() == [0, 3, 3, 4, 8, 10]
    assert fields["values.input_ids"].tolist() == list(itertools.chain(*ROWS))
    assert fields["values.labels"].tolist() == list(itertools.chain(*TABLE["labels"]))
    assert fields["scalars.weight"].tolist() == TABLE["weight"]
    assert fields["values.input_ids"].dtype == np.int32
    assert capsys.readouterr().out == (
        f"{output}: 5 samples, values.input_ids int32 [10], values.labels int32 [10], scalars.weight float64 [5]\n"
    )
    assert main(["pack", source, "-o", str(output), "--column", "text", "--tokenizer", tokenizer]) == 0
    fields = {name: field.values for name, field in read_fields(output, verify=True).items()}
    assert fields["values.input_ids"].tolist() == [1, 2, 3, 3, 1, 3, 2, 1, 1, 2, 3, 0, 0, 3]
    assert fields["offsets"].tolist() == [0, 3, 4, 6, 11, 14]


@pytest.mark.usefixtures("batch_bytes")
def test_npy_files_are_samples(tmp_path: Path) -> None:
    folder = tmp_path / "features"
    folder.mkdir()
    arrays = [np.random.default_rng(i).random((n, 2), np.float32) for i, n in enumerate((3, 0, 5))]
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", array)
    output = tmp_path / "out"
    assert main(["lengths", str(folder), "-o", str(output)]) == 0
    assert np.load(output).tolist() == [3, 0, 5]
    assert main(["pack", str(folder), "-o", str(output), "--column", "features"]) == 0
    assert np.array_equal(read_fields(output, verify=True)["values.features"].values, np.concatenate(arrays))


def test_token_vectors_and_numbers_of_json_lines_are_packed(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "data", [{"x": [[1.5, 2], [3, 4]], "y": 1}, {"x": [], "y": 2}, {"x": [[5, 6]], "y": 3}])
    output = tmp_path / "out"
    assert main(["lengths", str(source), "-o", str(output), "--column", "x"]) == 0
    assert np.load(output).tolist() == [2, 0, 1]
    assert main(["pack", str(source), "-o", str(output), "--column", "x", "--column", "y"]) == 0
    fields = read_fields(output, verify=True)
    assert fields["values.x"].values.tolist() == [[1.5, 2], [3, 4], [5, 6]]
    assert fields["scalars.y"].values.tolist() == [1, 2, 3]


def test_integers_beyond_every_dtype_are_not_packed(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = jsonl(tmp_path / "data.jsonl", [{"input_ids": [2**70]}])
    assert main(["pack", str(source), "-o", str(tmp_path / "out")]) == 2
    message = 'line 1: column "input_ids" holds object values, which no batch can hold; choose a column of numbers\n'
    assert capsys.readouterr().err == f"bucketshuffle pack: {source} {message}"
    assert os.listdir(tmp_path) == ["data.jsonl"]


def test_a_packed_file_is_a_data_set(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from bucketshuffle.torch import PreloadedDataset

    output = tmp_path / "data.safetensors"
    assert main(["pack", str(write("parquet", tmp_path)), "-o", str(output)]) == 0
    assert PreloadedDataset.open(output)[3]["input_ids"].tolist() == ROWS[3]


GOOD = {"input_ids": [1, 2], "text": "a", "x": 1, "f": 0.5}


@pytest.mark.usefixtures("batch_bytes")
@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        (
            [GOOD, {"x": 1}],
            [],
            "line 2: object missing required field `input_ids`; every line is an object with the same ",
        ),
        ([GOOD, [1]], [], "line 2: expected `object`, got `array`; every line is an object with the same columns"),
        (
            [GOOD, {**GOOD, "input_ids": None}],
            [],
            'line 2: column "input_ids" is null, not a list of numbers; give every ',
        ),
        (
            [GOOD, {**GOOD, "input_ids": "a"}],
            [],
            'line 2: column "input_ids" is "a", not a list of numbers; give every ',
        ),
        (
            [GOOD, {**GOOD, "input_ids": [1, "a,b"]}],
            [],
            'line 2: column "input_ids" is [1, "a,b"], not a list of numbers; ',
        ),
        ([GOOD, {**GOOD, "input_ids": [1, "2,3"]}], [], 'line 2: column "input_ids" is [1, "2,3"], not a list of '),
        (
            [GOOD, {**GOOD, "input_ids": [1, None]}],
            [],
            'line 2: column "input_ids" is [1, null], not a list of numbers; ',
        ),
        (
            [GOOD, {**GOOD, "input_ids": [1, [2]]}],
            [],
            'line 2: column "input_ids" holds tokens of several shapes; give ',
        ),
        ([GOOD], ["--column", "y"], " has no column y, but input_ids, text, x, f; choose one with --column"),
        ([{"a": [1], "b": [2]}], [], " has the columns a, b; choose one with --column"),
        (
            [GOOD],
            ["--column", "text"],
            'line 1: column "text" is text; pass --tokenizer FILE, or choose a column of tokens ',
        ),
        ([GOOD, {**GOOD, "x": -1}], ["--column", "x"], 'line 2: column "x" = -1 is below the shortest length = 0; '),
        (
            [GOOD],
            ["--column", "f"],
            'line 1: column "f" holds float64 numbers, such as 0.5, which are no lengths; choose ',
        ),
        (
            [GOOD, {**GOOD, "x": True}],
            ["--column", "x"],
            'line 2: column "x" is true, not a number; give every sample ',
        ),
        ([{"a": {}}], [], 'line 1: column "a" is {}, not a number; give every sample one, or choose another column'),
    ],
)
def test_a_bad_line_is_named(rows: list[object], words: list[str], message: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = jsonl(tmp_path / "data.jsonl", rows)
    assert main(["lengths", str(source), "-o", str(tmp_path / "out.npy"), *words]) == 2
    captured = capsys.readouterr()
    separator = "" if message.startswith(" has") else " "
    assert captured.err.startswith(f"bucketshuffle lengths: {source}{separator}{message}"), captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert os.listdir(tmp_path) == ["data.jsonl"]


def test_a_line_that_is_no_json_is_named_whatever_stands_before_it(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "data.jsonl"
    source.write_text(json.dumps(GOOD) + "\n\n" + json.dumps(GOOD) + '\n{"input_ids": [1, 2\n')
    assert main(["lengths", str(source), "-o", str(tmp_path / "out.npy")]) == 2
    assert capsys.readouterr().err.startswith(f"bucketshuffle lengths: {source} line 4: input data was truncated; ")
    source.write_text("\n" + json.dumps(GOOD) + "\n\n" + json.dumps({**GOOD, "input_ids": 3}) + "\n")
    assert main(["lengths", str(source), "-o", str(tmp_path / "out.npy")]) == 2
    assert capsys.readouterr().err.startswith(
        f'bucketshuffle lengths: {source} line 4: column "input_ids" is 3, not a '
    )


@pytest.mark.usefixtures("batch_bytes")
@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
@pytest.mark.parametrize(
    ("columns", "words", "message"),
    [
        ({"input_ids": [[1], None, [2]]}, [], ' row 1: column "input_ids" is null; drop the sample or fill it'),
        ({"input_ids": [[1], [2, None]]}, ["pack"], ' row 1: column "input_ids" has 1 null tokens; fill them '),
        ({"x": [{"a": 1}]}, [], " row 0: source has Arrow type struct<a: int64>, not lists of tokens; choose "),
        ({"x": [["a"], ["b"]]}, [], ' row 0: column "x" has lists of Arrow type string, not lists of numbers, or '),
        ({"x": [[{"role": "user"}]]}, [], ' row 0: column "x" has lists of Arrow type struct<role: string>, not '),
        ({"input_ids": [[1]]}, ["--column", "y"], " has no column y, but input_ids; choose one with --column"),
        ({"x": [1.5]}, [], ' row 0: column "x" holds float64 numbers, such as 1.5, which are no lengths; choose '),
        ({"input_ids": [[1], [2, 3]], "labels": [[1], [2]]}, ["pack", "--column", "input_ids", "--column", "labels"],
         ' row 1: column "labels" has 1 tokens, but the columns before it 2; pack columns of other lengths '),
        ({"input_ids": [[1], [70_000, 2]]}, ["pack", "--dtype", "uint16"],
         ' row 1: column "input_ids" holds 70000, which is outside uint16; choose another --dtype'),
        ({"n": [1, 2]}, ["pack"], ": no column of n holds tokens; name one with --column"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(kind, columns, words, message, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    table, source = pa.table(columns), tmp_path / "data"
    if kind == "parquet":
        pq.write_table(table, source)
    elif kind == "arrow file":
        pyarrow.feather.write_feather(table, source, chunksize=1)
    else:
        with pa.OSFile(str(source), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1)
    command, *options = words if words[:1] == ["pack"] else ["lengths", *words]
    assert main([command, str(source), "-o", str(tmp_path / "out"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"bucketshuffle {command}: {source}{message}"), captured.err
    assert captured.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("command", ["lengths", "pack"])
@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream", "zstd", "hugging face"])
def test_a_truncated_file_is_refused(kind: str, command: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = write(kind, tmp_path)
    capsys.readouterr()
    damaged = next(source.glob("*.arrow")) if source.is_dir() else source
    content = damaged.read_bytes()
    for size in (len(content) - 9, len(content) // 2, 60):
        damaged.write_bytes(content[:size])
        before = sorted(os.listdir(tmp_path))
        status = main([command, str(source), "-o", str(tmp_path / "out")])
        captured = capsys.readouterr()
        if status == 0:  # a stream of Arrow may end anywhere between two batches; what it holds then is whole
            assert kind in ("arrow stream", "hugging face")
            (tmp_path / "out").unlink()
            continue
        assert captured.err.startswith(f"bucketshuffle {command}: {source}"), captured.err
        assert captured.err.count("\n") == 1
        assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, ": No such file or directory"),
        (lambda path: path.write_bytes(b""), " is empty; pass a file with samples"),
        (lambda path: path.write_bytes(b"id,text\n1,a\n"), " starts like none of Parquet, Arrow, JSON Lines; pass "),
        (lambda path: path.write_bytes(b"PAR1"), " cannot be read ("),
        (lambda path: path.mkdir(), " holds no file; pass a folder with files of one kind: Parquet, Arrow, JSON "),
        (lambda path: jsonl(path, []).write_bytes(gzip.compress(b"")), " has no samples; pass a file with a "),
        (lambda path: pq.write_table(EMPTY, path), " has 0 samples, fewer than the 1 that a plan needs"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_is_refused(make, message: str, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = tmp_path / "data"
    make(source)
    assert main(["lengths", str(source), "-o", str(tmp_path / "out.npy")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bucketshuffle lengths: {source}{message}"), error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.npy").exists()


def test_a_folder_of_two_kinds_or_of_splits_is_refused(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    pq.write_table(pa.table(TABLE), tmp_path / "a.parquet")
    jsonl(tmp_path / "b.jsonl", [GOOD])
    assert main(["lengths", str(tmp_path), "-o", str(tmp_path / "out.npy")]) == 2
    assert capsys.readouterr().err == (
        f"bucketshuffle lengths: {tmp_path} holds Parquet and JSON Lines; pass a folder with files of one kind: "
        "Parquet, Arrow, JSON Lines, or .npy files\n"
    )
    datasets = pytest.importorskip("datasets")
    splits = tmp_path / "splits"
    datasets.DatasetDict({name: datasets.Dataset.from_dict(TABLE) for name in ("test", "train")}).save_to_disk(splits)
    capsys.readouterr()
    assert main(["lengths", str(splits), "-o", str(tmp_path / "out.npy")]) == 2
    message = f"{splits} holds the splits test, train; choose one, such as {splits}/test\n"
    assert capsys.readouterr().err.removeprefix("bucketshuffle lengths: ") == message


def test_a_bad_tokenizer_is_refused(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    source = jsonl(tmp_path / "data.jsonl", [GOOD])
    words = ["lengths", str(source), "-o", str(tmp_path / "out.npy"), "--column", "text", "--tokenizer"]
    assert main([*words, str(tmp_path / "no.json")]) == 2
    assert capsys.readouterr().err == f"bucketshuffle lengths: {tmp_path}/no.json: No such file or directory\n"
    assert main([*words, str(source)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(
        rf"bucketshuffle lengths: {source} holds no tokenizer \(.+\); pass the tokenizer.json .+\n", error
    )


def test_a_log_has_a_line_now_and_then(tmp_path: Path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    from bucketshuffle.cli import progress

    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    source = write("folder of parquet", tmp_path)
    assert main(["lengths", str(source), "-o", str(tmp_path / "out.npy")]) == 0
    assert capsys.readouterr().err == "lengths: 2 of 5 (40%) rows\nlengths: 5 of 5 (100%) rows\n"


def test_memory_is_bounded_by_a_batch(tmp_path: Path) -> None:
    row = json.dumps({"input_ids": list(range(2_000)), "text": "word " * 400}) + "\n"
    source = tmp_path / "data.jsonl"
    with open(source, "w") as file:
        for _ in range(12_000):  # 140 MB
            file.write(row)
    code = (
        "import resource, sys; from bucketshuffle.cli import main; status = main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024); sys.exit(status)"
    )
    peaks = []
    for path in (jsonl(tmp_path / "one.jsonl", [json.loads(row)]), source):
        done = subprocess.run(
            [sys.executable, "-c", code, "lengths", str(path), "-o", str(tmp_path / "out.npy")],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert np.load(tmp_path / "out.npy").tolist() == [2_000] * 12_000
    assert peaks[1] - peaks[0] < 80, peaks  # MB, where a batch of 8 is held about three times; the file has 140
