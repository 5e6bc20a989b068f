"""A model made for a live run, the cores it is given, and a server's process: started, divided, ended whatever happens."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engines.vllm.machine import Usage, divide, family, share_of_others, usage
from headway.engines.vllm.made_model import VOCAB, byte_letters, make_model, shape_of, size_given, tokenizer
from headway.engines.vllm.server import Serving, serving


def test_the_tokenizer_knows_every_byte_and_its_merges_make_tokens_it_has() -> None:
    model = tokenizer()["model"]
    vocab, merges = model["vocab"], model["merges"]
    assert len(vocab) == VOCAB
    assert sorted(vocab.values()) == list(range(VOCAB))
    assert set(byte_letters().values()) <= set(vocab)
    assert len(set(byte_letters().values())) == 256
    assert all(a + b in vocab for a, b in merges)
    assert len({tuple(m) for m in merges}) == len(merges)


@given(st.floats(8e6, 2e10))
@settings(max_examples=15)
def test_a_made_model_has_about_the_size_that_was_asked_for(size: float) -> None:
    shape = shape_of(size)
    assert abs(shape.parameters / size - 1) < 0.1
    assert shape.heads % shape.kv_heads == 0


@pytest.mark.parametrize("text", ["17", "3M", "100B", "big", "", "-17M"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--size"):
        size_given(text)


def test_a_model_is_not_written_over_something_else(tmp_path: Path) -> None:
    made = make_model(tmp_path / "llm", "17M")
    assert 16e6 < made["parameters"] < 18e6
    assert json.loads((tmp_path / "llm" / "config.json").read_text())["vocab_size"] == VOCAB
    make_model(tmp_path / "llm", "20M")
    (tmp_path / "llm" / "model.safetensors").write_text("weights")
    with pytest.raises(ValueError, match=r"holds model\.safetensors"):
        make_model(tmp_path / "llm", "17M")


def test_cores_are_divided_and_one_core_is_said_to_be_shared() -> None:
    assert divide([3, 1, 2]) == ((1, 2), (3,), False)
    assert "disturb" in divide([7]).sentence()


def test_a_family_is_a_process_with_its_children() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"], stdin=subprocess.PIPE
    )
    try:
        end = time.monotonic() + 10
        while len(family(parent.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(family(parent.pid)) == 2
        assert usage([parent.pid]).ours_s >= 0
    finally:
        parent.communicate(b"\n")
    assert family(parent.pid) == []


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 50))
def test_the_share_of_others_is_a_share(busy: float, ours: float, span: float) -> None:
    assert 0 <= share_of_others(Usage(0, 0, 0), Usage(span, busy, ours), 2) <= 1


def fake_vllm(folder: Path, program: str) -> Path:
    """An environment whose vllm is a program of the test's: starting and stopping is about processes, not about models."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    file = folder / "bin" / "vllm"
    file.write_text(f"#!{sys.executable}\n{textwrap.dedent(program)}")
    file.chmod(0o755)
    return folder


HEALTHY = """
    import http.server, subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *a): pass
    port = int(sys.argv[sys.argv.index("--port") + 1])
    print("child", child.pid, flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


def test_a_server_ends_with_its_block_and_with_an_error_in_it(tmp_path: Path) -> None:
    how = Serving(tmp_path, tmp_path / "log", place=fake_vllm(tmp_path / "env", HEALTHY))
    with serving(how) as server:
        assert server.alive
        members = family(server.pid)
        assert len(members) == 2
    assert family(*members) == []
    members = []

    def fail() -> None:
        with serving(how) as server:
            members.extend(family(server.pid))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert len(members) == 2
    assert family(*members) == []


def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    place = fake_vllm(tmp_path / "env", HEALTHY)
    code = f"""
        import time
        from pathlib import Path
        from headway.engines.vllm.server import Serving, serving
        with serving(Serving(Path({str(tmp_path)!r}), Path({str(tmp_path / "log")!r}), place=Path({str(place)!r}))) as server:
            print(server.pid, flush=True)
            time.sleep(600)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert owner.stdout is not None
    members = family(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    end = time.monotonic() + 15
    while family(*members) and time.monotonic() < end:
        time.sleep(0.1)
    assert family(*members) == []


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    fails = 'import sys\nprint("ValueError: no such flag --x")\nprint("RuntimeError: Engine core initialization failed")\nsys.exit(3)'
    how = Serving(tmp_path, tmp_path / "log", place=fake_vllm(tmp_path / "env", fails))
    with pytest.raises(ValueError, match=r"ended with 3.*no such flag --x"), serving(how):
        pass
    slow = dataclasses.replace(how, place=fake_vllm(tmp_path / "slow", "import time\ntime.sleep(60)"), start_s=1.0)
    with pytest.raises(ValueError, match="within 1 s"), serving(slow):
        pass


def test_no_environment_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_VLLM", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="scripts/vllm-env"):
        Serving(tmp_path, tmp_path / "log").command(1)
