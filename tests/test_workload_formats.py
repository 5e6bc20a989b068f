"""Workloads that are drawn from files, and BurstGPT's: client pools, lengths without arrivals, and how each is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.readers.errors import TraceError
from headway.identification.readers.workload_sources import SOURCE_READERS
from headway.identification.readers.workloads import read_workload
from headway.loads import open_load
from headway.models.clients import GAMMA, SILENT, WEIBULL, Client, ClientPool, LengthTable
from headway.models.generators import Poisson
from headway.models.recorded_lengths import RecordedLengths
from headway.models.signals import Target
from headway.models.workload import Replay
from headway.workloads import load_workload, located

DATA = Path(__file__).parent / "data" / "workloads"
TRACE = "0,2,1,Gamma,1.0,0.5\n600,0,0,,0,0\n1200,4,3,Weibull,0.5,0.1\n1800,3,1,Gamma,0.25,1.3\n"
DATASET = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"},
    "1200": {"input_tokens": "{30: 1.0}", "output_tokens": "{0: 0.5, 7: 0.5}"},
}
LENGTHS = "input_length,output_length\n" + "".join(f"{10 + i},{100 + i}\n" for i in range(12))
TWO = (Target(1.0, 0.025, name="chat", share=0.75), Target(10.0, 0.2, name="batch", share=0.25))


def _pool(folder: Path, trace: str = TRACE, dataset: object = DATASET, number: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"chunk-{number}-trace.csv").write_text(trace)
    (folder / f"chunk-{number}-dataset.json").write_text(dataset if isinstance(dataset, str) else json.dumps(dataset))
    return folder


def _said(text: str | Path, rate_rps: float | None = None) -> str:
    with pytest.raises(TraceError) as caught:
        load_workload(str(text), rate_rps)
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    return said


def _uniform(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.arange(low, high)
    return tokens, np.arange(1, len(tokens) + 1) / len(tokens)


# BurstGPT.


def test_burstgpt_holds_requests_failures_and_kinds() -> None:
    workload, notes = read_workload(DATA / "burstgpt.csv")
    assert workload.arrival_s.tolist() == [0, 38, 104, 160, 187, 187]
    assert workload.prompt_tokens.tolist() == [410, 1050, 388, 140, 720, 64]
    assert workload.output_tokens.tolist() == [22, 214, 260, 17, 301, 12]
    assert notes == [
        "Model in the file: ChatGPT 57%, GPT-4 43%; all are taken as one kind of request",
        "Log Type in the file: Conversation log 71%, API log 29%; all are taken as one kind of request",
        "1 of 7 rows ask for no output token; set aside",
    ]


def test_a_later_release_of_burstgpt_has_more_columns(tmp_path: Path) -> None:
    text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    (tmp_path / "b.csv").write_text(text + "19440110.0,s-1,43,GPT-4,906,446,1352,API log\n19440111.5,s-2,1,GPT-4,0,3,3,API log\n")
    workload, notes = read_workload(tmp_path / "b.csv")
    assert workload.prompt_tokens.tolist() == [906]
    assert notes == ["1 of 2 rows hold no request token; set aside"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("41,ChatGPT,1050", "41,ChatGPT,many", "row 2, column Request tokens: expected a whole number >= 0, found 'many'"),
        ("107,GPT-4", "-107,GPT-4", "row 3, column Timestamp: expected seconds >= 0, found '-107'"),
        ("388,260", "388,1.5", "row 3, column Response tokens: expected a whole number >= 0, found '1.5'"),
        ("Response tokens", "Responses", "expected a column Response tokens, found 'Timestamp,Model,Request tokens,Responses"),
        ("131,ChatGPT", "131,ChatGPT,5,5,5", "row 4: expected 6 cells, as in the header, found '131,ChatGPT,5,5,5"),
    ],
)
def test_a_wrong_cell_of_burstgpt_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "b.csv"
    file.write_text((DATA / "burstgpt.csv").read_text().replace(old, new))
    assert said in _said(file)


# Lengths without arrivals.


def test_lengths_alone_need_a_rate(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(LENGTHS)
    said = "expected a rate beside a table of lengths, input_length,output_length, without arrivals: write for example --rate 8/s"
    assert _said(file) == f"{file}: {said}"
    source, notes = load_workload(str(file), 8.0, classes=TWO)
    assert isinstance(source, RecordedLengths)
    assert notes == ["the file holds lengths only: arrivals are drawn as a Poisson process of 8/s"]
    assert source.source == "lengths.csv at 8/s"
    drawn = source.draw(0, 4_000, heldout=False)
    drawn.check()
    assert (drawn.output_tokens == drawn.prompt_tokens + 90).all()  # pairs stay pairs
    assert drawn.rate_rps == pytest.approx(8.0, rel=0.1)
    assert np.bincount(drawn.class_id, minlength=2) / 4_000 == pytest.approx([0.75, 0.25], abs=0.05)


@given(seed=st.integers(0, 10_000), n=st.integers(6, 60), requests=st.integers(1, 300))
def test_held_out_requests_never_share_a_pair_with_training(seed: int, n: int, requests: int) -> None:
    source = RecordedLengths(Poisson(3.0), np.arange(1, n + 1), np.arange(1, n + 1))
    train, test = (source.draw(seed, requests, heldout=heldout) for heldout in (False, True))
    assert len(train) == len(test) == requests
    assert train.prompt_tokens.max() <= n - n // 3 < test.prompt_tokens.min()
    assert test.prompt_tokens.max() <= n
    assert np.array_equal(train.arrival_s, source.draw(seed, requests, heldout=False).arrival_s)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\n13,103", "\n13,long", "row 4, column output_length: expected a whole number >= 0, found 'long'"),
        ("\n13,103", "\n-13,103", "row 4, column input_length: expected a whole number >= 0, found '-13'"),
        ("\n13,103", "\n13,103,4", "row 4: expected 2 cells, as in the header, found '13,103,4'"),
        (LENGTHS[41:], "", "pairs of lengths; it takes at least 6 to hold a third of them back"),
    ],
)
def test_a_wrong_table_of_lengths_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text(LENGTHS.replace(old, new))
    assert said in _said(tmp_path / "lengths.csv", 8.0)


def test_rows_without_tokens_are_counted(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text(LENGTHS + "0,5\n5,0\n")
    assert "2 of 14 rows hold no prompt or no output token; set aside" in load_workload(str(tmp_path / "lengths.csv"), 1.0).notes


# Client pools.


@pytest.mark.parametrize("given_as", ["folder", "trace", "dataset", "packed"])
def test_a_pool_is_a_folder_or_one_of_its_files(given_as: str, tmp_path: Path) -> None:
    folder = _pool(_pool(tmp_path / "pool"), trace=TRACE.replace("0,2,", "0,1,"), number=12)
    if given_as == "packed":
        for file in list(folder.iterdir()):
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    path = {"trace": folder / "chunk-1-trace.csv", "dataset": folder / "chunk-1-dataset.json"}.get(given_as, folder)
    source, notes = load_workload(str(path))
    assert isinstance(source, ClientPool)
    assert len(source.clients) == (1 if given_as in ("trace", "dataset") else 2)
    assert source.clients[0].rate_rps.tolist() == [2, 0, 4, 3]
    assert source.clients[0].family.tolist() == [GAMMA, SILENT, WEIBULL, GAMMA]
    assert source.window_s == 600
    assert "4 windows of 600 s" in notes[0]
    first, second = source.clients[0].lengths
    assert (first.start_s, second.start_s) == (0, 1200)
    assert first.prompt_share.tolist() == [0.25, 1.0]
    assert second.output_tokens.tolist() == [7]  # an output of no token could not be late


def test_draws_of_a_pool_keep_to_their_part_and_their_lengths(tmp_path: Path) -> None:
    source = load_workload(str(_pool(tmp_path / "pool"))).source
    assert isinstance(source, ClientPool)
    assert source.pool_rate_rps == pytest.approx(3.0)
    train, test = source.draw(0, 500, heldout=False), source.draw(0, 500, heldout=True)
    for drawn in (train, test):
        drawn.check()
        assert len(drawn) == 500
        assert drawn.rate_rps == pytest.approx(3.0)
    assert set(test.prompt_tokens) == {30}  # the last third is the window from 1800 s
    assert set(test.output_tokens) == {7}
    pooled = np.concatenate([source.draw(seed, 2_000, heldout=False).prompt_tokens for seed in range(6)])
    assert set(pooled) == {10, 20, 30}
    early = pooled[pooled < 30]
    assert np.mean(early == 10) == pytest.approx(0.25, abs=0.03)


@given(seed=st.integers(0, 5_000), family=st.sampled_from([GAMMA, WEIBULL]), shape=st.sampled_from([0.3, 0.7, 1.0, 4.0]))
@settings(max_examples=30)
def test_gaps_have_the_burstiness_of_their_family_and_the_rate_of_their_window(seed: int, family: int, shape: float) -> None:
    table = LengthTable(0.0, *_uniform(1, 50), *_uniform(1, 9))
    client = Client(np.full(6, 20.0), np.full(6, family), np.full(6, shape), (table,))
    drawn = ClientPool((client,), 600.0, rate_rps=5.0).draw(seed, 3_000, heldout=False)
    gaps_s = np.diff(drawn.arrival_s)
    assert gaps_s.mean() == pytest.approx(1 / 5.0)
    cv = float(gaps_s.std() / gaps_s.mean())
    wanted = 1 / np.sqrt(shape) if family == GAMMA else {0.3: 5.4, 0.7: 1.46, 1.0: 1.0, 4.0: 0.28}[shape]
    assert wanted / 2 < cv < wanted * 2
    again = ClientPool((client,), 600.0, rate_rps=10.0).draw(seed, 3_000, heldout=False)
    assert again.arrival_s == pytest.approx(drawn.arrival_s / 2)  # the same requests at another rate
    assert np.array_equal(again.prompt_tokens, drawn.prompt_tokens)


def test_a_busier_client_sends_more(tmp_path: Path) -> None:
    tables = [LengthTable(0.0, np.array([k]), np.ones(1), np.array([k]), np.ones(1)) for k in (1, 2)]
    clients = tuple(Client(np.full(3, r), np.full(3, GAMMA), np.ones(3), (t,)) for r, t in zip((1.0, 4.0), tables, strict=True))
    drawn = ClientPool(clients, 600.0).draw(3, 5_000, heldout=True)
    assert np.mean(drawn.prompt_tokens == 2) == pytest.approx(0.8, abs=0.03)
    with pytest.raises(ValueError, match="requests at least 1"):
        ClientPool(clients, 600.0).draw(0, 0, heldout=False)
    with pytest.raises(ValueError, match="rate must be positive and finite"):
        ClientPool(clients, 600.0).rescaled(-1.0)


WRONG = {
    "a family": (
        "600,0,0,,",
        "600,5,1,Pareto,",
        "trace.csv: row 2, column distribution: expected Gamma, Weibull or nothing, found 'Pareto'",
    ),
    "a rate": ("0,2,1", "0,two,1", "trace.csv: row 1, column rate: expected a number that is not negative, found 'two'"),
    "a shape": ("Weibull,0.5", "Weibull,0", "trace.csv: row 3, column shape: expected a shape from 0.02 to 100, found '0'"),
    "a rate without a family": ("600,0", "600,1", "row 2, column rate: expected a distribution where the rate is above zero"),
    "cells": ("600,0,0,,0,0", "600,0,0,,0", "row 2: expected 6 cells, start, rate, cv, distribution, shape, scale, found '600,0,0,,0'"),
    "windows": ("1800", "1900", "row 4, column start: expected windows of equal length, one after the other, found '1900'"),
    "too few": (TRACE[20:], "", "expected at least three windows"),
    "silence": ("1800,3,1,Gamma,0.25,1.3", "1800,0,0,,0,0", "no client sends a request in the last third of the windows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_cell_of_a_pool_is_named(case: str, tmp_path: Path) -> None:
    old, new, said = WRONG[case]
    assert old in TRACE
    assert said in _said(_pool(tmp_path / "pool", TRACE.replace(old, new)))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("{", "dataset.json: expected an object of windows, each with input_tokens and output_tokens as text"),
        ({}, "dataset.json: expected at least one window with lengths"),
        ({"0": {"input_tokens": "{1: 1.0}"}}, "dataset.json: column 0.output_tokens: expected this key, found 'input_tokens'"),
        ({"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{1: 1.0}"}}, "column 0.input_tokens: expected shares that are not negative"),
        (
            {"0": {"input_tokens": "__import__('os')", "output_tokens": "{1: 1.0}"}},
            "column 0.input_tokens: expected lengths and their shares",
        ),
        ({"0": {"input_tokens": "{1.5: 1.0}", "output_tokens": "{1: 1.0}"}}, "column 0.input_tokens: expected lengths and their shares"),
        ({"soon": DATASET["0"]}, "column soon: expected a number that is not negative"),
    ],
)
def test_a_wrong_table_of_a_pool_is_named(dataset: object, said: str, tmp_path: Path) -> None:
    assert said in _said(_pool(tmp_path / "pool", dataset=dataset))


def test_a_pool_must_be_whole(tmp_path: Path) -> None:
    folder = _pool(tmp_path / "pool")
    _pool(folder, TRACE.replace("600,", "700,"), number=2)
    assert "chunk-2-trace.csv: row 3, column start: expected windows of equal length" in _said(folder)
    _pool(folder, "0,2,1,Gamma,1,1\n1,2,1,Gamma,1,1\n2,2,1,Gamma,1,1\n", number=2)
    assert "chunk-2-trace.csv: expected the same windows as chunk-1-trace.csv" in _said(folder)
    (folder / "chunk-2-dataset.json").unlink()
    assert "expected chunk-2-dataset.json beside chunk-2-trace.csv" in _said(folder)
    (folder / "chunk-2-trace.csv").unlink()
    (folder / "chunk-1-trace.csv").write_bytes(b"\x1f\x8bno gzip")
    assert "chunk-1-trace.csv: expected a whole file of text" in _said(folder)
    (tmp_path / "empty").mkdir()
    assert "expected a ServeGen pool" in _said(f"servegen:{tmp_path / 'empty'}")


# How they are named.


def test_a_format_and_a_rate_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths.csv").write_text(LENGTHS)
    folder = _pool(tmp_path / "po@l")
    for text, rate in (
        (f"sharegpt:{tmp_path / 'lengths.csv'}@8/s", 8),
        (f"servegen:{folder}@120/min", 2),
        (f"burstgpt:{DATA / 'burstgpt.csv'}@5/s", 5),
    ):
        assert load_workload(text).source.draw(0, 3 if rate == 5 else 900, heldout=False).rate_rps == pytest.approx(rate, rel=0.2)
    assert isinstance(load_workload(f"servegen:{folder}").source, ClientPool)  # the @ is the folder's
    assert isinstance(load_workload(f"azure:{DATA / 'azure.csv'}").source, Replay)
    assert load_workload(f"servegen:{folder}@2/s", 7.0).source.draw(0, 500, heldout=False).rate_rps == pytest.approx(7.0)
    with pytest.raises(ValueError, match="a rate needs a unit, got '8'; write 8/s or 8/min"):
        load_workload(f"sharegpt:{tmp_path / 'lengths.csv'}@8")
    with pytest.raises(ValueError, match="rows select from a file of requests"):
        load_workload(str(folder), rows=slice(0, 5))
    assert "expected a file that exists" in _said("servegen:nowhere@8/s")
    monkeypatch.chdir(tmp_path)
    assert located("sharegpt:lengths.csv@8/s") == f"sharegpt:{(tmp_path / 'lengths.csv').resolve()}@8.0/s"
    assert located("poisson:rate=1/s,prompt=1,output=1") == "poisson:rate=1/s,prompt=1,output=1"
    load = open_load("servegen:po@l@8/s", "ttft=1s,itl=25ms", rate_rps=None, rows=None, epsilon=None)
    assert load.spec == f"servegen:{folder.resolve()}@8.0/s"
    assert load.requests(None) == 960


def test_every_source_reader_leaves_other_files_alone(tmp_path: Path) -> None:
    for file in DATA.iterdir():
        assert not any(reader.claims(file) for reader in SOURCE_READERS.values())
    assert not any(reader.claims(tmp_path / "gone") for reader in SOURCE_READERS.values())


def test_the_recorded_files_are_read(shared_data: Path) -> None:
    folder = shared_data / "workloads"
    pool, notes = load_workload(f"servegen:{folder / 'servegen' / 'm-small'}@8/s")
    assert isinstance(pool, ClientPool)
    assert "4 clients of 2,016 windows of 600 s" in notes[0]
    for seed in range(4):
        drawn = pool.draw(seed, 2_000, heldout=True)
        drawn.check()
        assert drawn.rate_rps == pytest.approx(8.0)
    lengths, notes = load_workload(str(folder / "sharegpt_vicuna_lengths.csv"), 8.0)
    assert "819 of 81,494 rows hold no prompt or no output token; set aside" in notes
    assert lengths.draw(0, 20_000, heldout=False).output_tokens.mean() == pytest.approx(1211, rel=0.05)
