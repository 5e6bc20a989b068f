"""Workload files: what each format holds, what is said of it, and how a wrong cell is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.readers.errors import TraceError
from headway.identification.readers.workloads import WORKLOAD_READERS, read_workload
from headway.models.signals import Target
from headway.models.workload import Replay, Workload
from headway.workloads import load_workload, workload_source

DATA = Path(__file__).parent / "data" / "workloads"
FIXTURES = {"headway": "requests.csv", "azure": "azure.csv", "burstgpt": "burstgpt.csv", "mooncake": "mooncake.jsonl"}
TWO = (Target(1.0, 0.025, name="chat", share=0.75), Target(10.0, 0.2, name="batch", share=0.25))
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
OURS = "arrival_s,prompt_tokens,output_tokens\n0,10,5\n1.5,20,6\n"
MOONCAKE = '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'


def _written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "w.txt"  # no format is told by a name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("format", WORKLOAD_READERS)
def test_a_format_is_known_by_what_it_holds(format: str, tmp_path: Path) -> None:
    file = _written(tmp_path, (DATA / FIXTURES[format]).read_bytes())
    (found, notes), (told, _) = read_workload(file), read_workload(file, format)
    found.check()
    assert np.array_equal(found.arrival_s, told.arrival_s)
    assert found.arrival_s[0] == 0
    assert found.source == "w.txt"
    assert all(len(note.splitlines()) == 1 for note in notes)
    assert [getattr(found, name).dtype for name in ("arrival_s", "prompt_tokens", "output_tokens", "class_id")] == ["f8", "i8", "i8", "i8"]


@pytest.mark.parametrize("format", WORKLOAD_READERS)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n", "no final newline", "byte order mark"])
def test_how_lines_end_and_files_begin_changes_nothing(format: str, ends: str, tmp_path: Path) -> None:
    text = (DATA / FIXTURES[format]).read_text().rstrip("\n")
    changed = {"no final newline": text, "byte order mark": "\ufeff" + text}.get(ends, text.replace("\n", ends) + ends)
    plain, same = read_workload(DATA / FIXTURES[format])[0], read_workload(_written(tmp_path, changed))[0]
    assert np.array_equal(plain.arrival_s, same.arrival_s)
    assert np.array_equal(plain.prompt_tokens, same.prompt_tokens)


def test_azure_keeps_100_ns() -> None:
    workload, notes = read_workload(DATA / "azure.csv")
    assert workload.arrival_s.tolist() == pytest.approx([0, 4.314579, 4.541877, 4.710427, 5.89306, 5.992506], abs=1e-9)
    assert workload.prompt_tokens.tolist() == [374, 396, 879, 91, 91, 381]
    assert notes == []


def test_azure_stamps_may_have_a_zone() -> None:
    assert read_workload(DATA / "azure_zones.csv")[0].arrival_s.tolist() == [0, 0.75, 1.5]


def test_mooncake_stamps_stay_and_empty_outputs_are_counted() -> None:
    workload, notes = read_workload(DATA / "mooncake.jsonl")
    assert workload.arrival_s.tolist() == [0, 0, 3, 3, 3]
    assert workload.output_tokens.tolist() == [50, 40, 80, 10, 10]
    assert notes == [
        "6 units of 512 prompt tokens, 33% of them as in an earlier prompt: computed once while cached; 3 hashes of no whole unit left out",
        "1 of 6 rows ask for no output token; set aside",
        "75% of the requests share the time stamp of the one before, stamps are 3 s apart; kept as they are",
    ]


def test_equal_hashes_of_mooncake_are_equal_beginnings() -> None:
    prefix = read_workload(DATA / "mooncake.jsonl")[0].prefix  # the third row asks for no output and is gone
    assert prefix is not None
    assert prefix.unit_tokens == 512
    assert prefix.start.tolist() == [0, 1, 3, 4, 4, 5]
    assert prefix.ids.tolist() == [0, 0, 1, 2, 3]


def test_our_own_hashes_count_where_their_unit_is_said(tmp_path: Path) -> None:
    workload, notes = read_workload(DATA / "requests.csv")
    assert workload.prefix is None
    assert notes[0] == "11 hashes of prompts are not used: no column prefix_unit_tokens says how many tokens each stands for"
    head = "arrival_s,prompt_tokens,output_tokens,prefix_hashes,prefix_unit_tokens\n"
    file = _written(tmp_path, head + "2,100,5,a b,32\n0,70,5,a b c,32\n1,96,5,b a,32\n3,40,5,,32\n")
    workload, notes = read_workload(file)
    assert workload.prefix is not None
    assert workload.prefix.start.tolist() == [0, 2, 4, 6, 6]
    first, second, third = (workload.prefix.ids[2 * i : 2 * i + 2].tolist() for i in range(3))
    assert first == third
    assert not set(first) & set(second), "b after nothing is another beginning than b after a"
    assert notes[0].startswith("6 units of 32 prompt tokens, 33% of them as in an earlier prompt")
    assert notes[0].endswith("1 hashes of no whole unit left out")
    with pytest.raises(TraceError, match=r"row 2, column prefix_unit_tokens: expected 32, the same in every row, found '16'"):
        read_workload(_written(tmp_path, head + "2,100,5,a,32\n0,70,5,a,16\n"))


def test_our_own_file_has_classes_by_name() -> None:
    workload, notes = read_workload(DATA / "requests.csv", classes=["batch", "chat"])
    assert workload.class_id.tolist() == [1, 0, 1, 0, 1, 1, 0]
    assert workload.arrival_s.tolist() == [0, 0.75, 1.5, 3.5, 4.5, 5.5, 7]
    assert notes[1] == "1 of 8 rows ask for no output token; set aside"
    numbered, notes = read_workload(DATA / "requests.csv")
    assert numbered.class_id.tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert "classes are numbered as they come: chat = 0, batch = 1" in notes


def test_one_target_holds_for_every_class() -> None:
    workload, notes = read_workload(DATA / "requests.csv", classes=["default"])
    assert not workload.class_id.any()
    assert "the one target holds for requests of every class in the file: 'chat', 'batch'" in notes


def test_classes_may_be_numbers(tmp_path: Path) -> None:
    file = _written(tmp_path, "class,arrival_s,prompt_tokens,output_tokens\n1,0,10,5\n0,1,20,6\n")
    assert read_workload(file)[0].class_id.tolist() == [1, 0]
    assert read_workload(file, classes=["chat", "batch"])[0].class_id.tolist() == [1, 0]


def test_classes_that_a_file_does_not_name_are_drawn_by_share(tmp_path: Path) -> None:
    file = _written(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},9,9\n" for i in range(4000)))
    source, notes = load_workload(str(file), classes=TWO)
    assert isinstance(source, Replay)
    assert abs(source.workload.class_id.mean() - 0.25) < 0.05
    assert notes == ["the file names no classes; each request was given one at random, by the shares chat 0.75, batch 0.25"]
    part = workload_source(str(file), rows=slice(100, 200), classes=TWO)
    assert isinstance(part, Replay)
    assert np.array_equal(part.workload.class_id, source.workload.class_id[100:200]), "a row keeps its class"


def test_unsorted_rows_are_sorted_and_other_columns_named(tmp_path: Path) -> None:
    file = _written(tmp_path, "Arrival_s, prompt_tokens ,output_tokens,user,row\n7,1,2,a,1\n5,3,4.0,b,2\n\n6,5,6,c,3\n")
    workload, notes = read_workload(file)
    assert workload.arrival_s.tolist() == [0, 1, 2]
    assert workload.prompt_tokens.tolist() == [3, 5, 1]
    assert notes == ["columns that nothing reads: user, row", "1 rows came before the row above them; sorted by arrival"]


LISTED = 'docs/commands.md, "A workload", lists what is read'
OWN = "write a CSV with arrival_s, prompt_tokens and output_tokens"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected at least one request, and the file is empty"),
        (b"\n \n", "expected at least one request, and the file is empty"),
        (b"\x1f\x8b\x08\x00abc", "expected text, and the file is compressed or binary; unpack it first"),
        (
            b"prompt_token,output_token\n1,2\n",
            "expected a workload; a CSV with prompt_token, output_token is of no known format: nearest is a csv of requests (headway), of which "
            f"it lacks arrival_s, prompt_tokens (here prompt_token?) and output_tokens (here output_token?); {LISTED}",
        ),
        (b"x,y\n1,2\n", f"expected a workload; a CSV with x, y is of no known format: {OWN}; {LISTED}"),
        (b'{"a": 1}\n', f"expected a workload; a JSON object with a is of no known format: {OWN}; {LISTED}"),
        (OURS.splitlines()[0], "expected at least one row below the header"),
        (OURS.replace("prompt_tokens", "prompt"), "expected a column prompt_tokens, found 'arrival_s,prompt,output_tokens'"),
        (OURS.replace("prompt_tokens", "arrival_s"), "expected a column prompt_tokens, found 'arrival_s,arrival_s,output_tokens'"),
        (
            "arrival_s,prompt_tokens,output_tokens,arrival_s\n0,1,2,3\n",
            "expected one column arrival_s, found 'arrival_s,prompt_tokens,output_tokens,arrival_s'",
        ),
        (OURS.replace("20", "abc"), "row 2, column prompt_tokens: expected a whole number >= 1, found 'abc'"),
        (OURS.replace("20", "0"), "row 2, column prompt_tokens: expected a whole number >= 1, found '0'"),
        (OURS.replace("20", ""), "row 2, column prompt_tokens: expected a whole number >= 1, found ''"),
        (OURS.replace("20", "2.5"), "row 2, column prompt_tokens: expected a whole number >= 1, found '2.5'"),
        (OURS.replace("20", "nan"), "row 2, column prompt_tokens: expected a whole number >= 1, found 'nan'"),
        (OURS.replace("20", "1" * 20), "row 2, column prompt_tokens: expected a whole number <= 1000000000, found '11111111111111111111'"),
        (OURS.replace("6", "-6"), "row 2, column output_tokens: expected a whole number >= 0, found '-6'"),
        (OURS.replace("1.5", "-1.5"), "row 2, column arrival_s: expected seconds >= 0, found '-1.5'"),
        (OURS.replace("1.5", "inf"), "row 2, column arrival_s: expected seconds >= 0, found 'inf'"),
        (OURS.replace("1.5,", "\n\n1.5,x"), "row 4, column prompt_tokens: expected a whole number >= 1, found 'x20'"),
        (OURS + "2,3,4,5\n", "row 3: expected 3 cells, as in the header, found '2,3,4,5'"),
        (OURS + "2,3\n", "row 3, column output_tokens: expected a whole number >= 0, found ''"),
        (OURS + '2,"3\n', "row 3: expected quotes in pairs, found '2,\"3'"),
        (OURS.encode() + b"2,\xff,4\n", "row 3: expected UTF-8 text, found b'2,\\xff,4'"),
        (OURS.replace(",5", ",0").replace(",6", ",0"), "expected at least one request that asks for an output token"),
        (
            "arrival_s,prompt_tokens,output_tokens,class\n0,1,2,\n",
            "row 1, column class: expected the name or number of a class, found ''",
        ),
        (AZURE.replace("374", "x"), "row 1, column ContextTokens: expected a whole number >= 1, found 'x'"),
        (
            AZURE.replace("-11-16 ", "-11-"),
            "row 1, column TIMESTAMP: expected a time such as 2023-11-16 18:15:46.6805900, found '2023-11-18:15:46.6805900'",
        ),
        (
            AZURE.replace("-11-16", "-13-16"),
            "row 1, column TIMESTAMP: expected a time such as 2023-11-16 18:15:46.6805900, found '2023-13-16 18:15:46.6805900'",
        ),
        (AZURE.replace("TIMESTAMP", "TIME"), "expected a column TIMESTAMP, found 'TIME,ContextTokens,GeneratedTokens'"),
        (MOONCAKE + "\n" + MOONCAKE.replace("6758", '"x"'), "row 3, column input_length: expected a whole number >= 1, found 'x'"),
        (MOONCAKE.replace("6758", "0"), "row 1, column input_length: expected a whole number >= 1, found 0"),
        (MOONCAKE.replace("6758", "1" * 20), "row 1, column input_length: expected a whole number >= 1, found 11111111111111111111"),
        (MOONCAKE.replace(" 0,", " -1,", 1), "row 1, column timestamp: expected milliseconds >= 0, found -1"),
        (MOONCAKE.replace("[0, 1]", "3"), "row 1, column hash_ids: expected a list of whole numbers, found 3"),
        (MOONCAKE + '{"timestamp": 1}\n', "row 2: expected a key input_length, found '{\"timestamp\": 1}'"),
        ('{"timestamp": 1,\n', "row 1: expected one JSON object on the line, found '{\"timestamp\": 1,'"),
        (MOONCAKE + "[1]\n", "row 2: expected one JSON object on the line, found '[1]'"),
        (MOONCAKE + '{"timestamp": 1, \n', "row 2: expected one JSON object on the line, found '{\"timestamp\": 1,'"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_workload(file)
    assert str(caught.value) == f"{file}: {message}"


@given(name=st.sampled_from(sorted(FIXTURES.values())), data=st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 9))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b'"', b"\n", b",", b"\r", b"{"])
        )
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(bytes(text))
    message = ""
    try:
        read_workload(file)[0].check()
    except TraceError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


def test_an_unknown_class_is_named_with_the_known_ones() -> None:
    with pytest.raises(TraceError) as caught:
        read_workload(DATA / "requests.csv", classes=["chat", "bulk"])
    assert str(caught.value).endswith(
        "requests.csv: row 2, column class: expected one of the classes chat, bulk, or a number from 0 to 1, found 'batch'"
    )


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv: expected a file that exists$"):
        read_workload(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="expected a file, not a folder"):
        read_workload(tmp_path)
    with pytest.raises(
        ValueError, match=r"format must be auto or one of headway, azure, burstgpt, mooncake, vllm_bench, .*engine_requests, got 'csv'"
    ):
        read_workload(DATA / "azure.csv", "csv")
    with pytest.raises(TraceError, match="expected a file that exists, or what to draw, such as poisson:rate=5/s"):
        workload_source("none.csv")


def test_rows_and_rate_are_taken_and_said() -> None:
    source, notes = load_workload(str(DATA / "azure.csv"), rate_rps=2.0, rows=slice(1, 4))
    assert isinstance(source, Replay)
    assert source.workload.prompt_tokens.tolist() == [396, 879, 91]
    assert source.workload.rate_rps == pytest.approx(2.0)
    assert source.source == "azure.csv rows 1:4 at 2/s"
    assert notes == ["arrivals rescaled from 5.05/s to 2/s"]
    assert load_workload(str(DATA / "azure.csv"), rows=slice(4, 10)).notes == [
        "rows 4:10 reach past the end: the file has 6 requests, 2 are taken"
    ]
    with pytest.raises(ValueError, match=r"rows 6: hold no request: azure\.csv has 6, counted from 0"):
        workload_source(str(DATA / "azure.csv"), rows=slice(6, None))


@given(st.integers(6, 400), st.integers(0, 10**6), st.integers(1, 500))
def test_training_and_heldout_windows_share_no_request(n: int, seed: int, requests: int) -> None:
    one = np.arange(n)
    replay = Replay(Workload(one.astype(float), one + 1, one + 1, np.zeros(n, dtype=np.int64)))
    training, heldout = replay.draw(seed, requests, heldout=False), replay.draw(seed, requests, heldout=True)
    assert not set(training.prompt_tokens) & set(heldout.prompt_tokens)
    assert len(training) == min(requests, n - n // 3)
    assert len(heldout) == min(requests, n // 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_s": np.array([])}, "workload given holds no request"),
        ({"class_id": np.array([0])}, "class_id has 1 rows, arrival_s has 3"),
        ({"arrival_s": np.array([0.0, 2.0, 1.0])}, "arrival_s must be finite and ascending"),
        ({"output_tokens": np.array([1, 0, 1])}, "output_tokens must be at least 1, row 1 has 0"),
    ],
)
def test_what_is_no_workload_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    ones = np.ones(3, dtype=np.int64)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Workload(np.arange(3.0), ones, ones, ones), **change).check()


def test_a_rate_that_cannot_be_is_refused() -> None:
    ones = np.ones(3, dtype=np.int64)
    with pytest.raises(ValueError, match="rate must be positive, got -1; write for example --rate 12/s"):
        Workload(np.arange(3.0), ones, ones, ones).rescaled(-1.0)
    with pytest.raises(ValueError, match="all arrivals at one instant, has no rate to rescale"):
        Workload(np.zeros(3), ones, ones, ones).rescaled(1.0)


def test_a_recording_too_short_to_hold_some_back_is_refused() -> None:
    five = Workload(np.arange(5.0), np.ones(5, int), np.ones(5, int), np.zeros(5, int), "short.csv")
    with pytest.raises(ValueError, match=r"short\.csv holds 5 requests; it takes at least 6 to hold a third of them back"):
        Replay(five).draw(0, 3, heldout=True)
    with pytest.raises(ValueError, match="requests must be at least 1, got 0"):
        workload_source(str(DATA / "azure.csv")).draw(0, 0, heldout=False)


def test_the_azure_conversation_trace(shared_data: Path) -> None:
    file = shared_data / "workloads" / "AzureLLMInferenceTrace_conv.csv"
    workload, notes = read_workload(file)
    gaps_s = np.diff(workload.arrival_s)
    assert len(workload) == 19_366
    assert workload.arrival_s[-1] / 60 == pytest.approx(58.4, abs=0.05)
    assert workload.rate_rps == pytest.approx(5.53, abs=0.01)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.09, abs=0.01)
    assert notes == []


def test_the_mooncake_conversation_trace(shared_data: Path) -> None:
    workload, notes = read_workload(shared_data / "workloads" / "mooncake_fast25_conversation_trace.jsonl")
    assert len(workload) == 12_031
    assert len(np.unique(workload.arrival_s)) == 1180
    workload.check()
    assert workload.prefix is not None
    units = np.diff(workload.prefix.start)
    assert (units == workload.prompt_tokens // 512).all()
    text = (shared_data / "workloads" / "mooncake_fast25_conversation_trace.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(np.unique(workload.prefix.ids)) == len({h for one in lines for h in one["hash_ids"][: one["input_length"] // 512]})
    assert notes == [
        "276,491 units of 512 prompt tokens, 38% of them as in an earlier prompt: computed once while cached; "
        "12,009 hashes of no whole unit left out",
        "90% of the requests share the time stamp of the one before, stamps are 3 s apart; kept as they are",
    ]
