"""Targets from a string and from a TOML file of classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.identification.readers.errors import TraceError
from headway.models.signals import Target
from headway.targets import parse_target

CHAT = '[[class]]\nname = "chat"\nshare = 0.7\nttft = "1s"\nitl = "25ms"\n'
BATCH = '[[class]]\nname = "batch"\nshare = "30%"\nttft = "10s"\nitl = "200ms"\ntransport = "2ms"\nepsilon = 0.05\nlevel = "token"\n'
TRANSPORT = "transport is 0{}: the targets hold where the engine emits a token, not where the client receives it"


def test_a_string_is_one_class() -> None:
    targets, notes = parse_target("ttft=1s, itl=25ms, transport=2ms, epsilon=2%")
    assert targets == (Target(1.0, 0.025, 0.002, 0.02),)
    assert notes == []


def test_transport_that_is_not_given_is_0_and_said() -> None:
    targets, notes = parse_target("ttft=1s,itl=25ms")
    assert targets[0].transport_s == 0
    assert notes == [TRANSPORT.format("")]
    assert parse_target("ttft=1s,itl=25ms,transport=0")[1] == []


def test_a_file_is_a_class_each(tmp_path: Path) -> None:
    file = tmp_path / "classes.toml"
    file.write_text(CHAT + BATCH)
    targets, notes = parse_target(str(file))
    assert targets == (Target(1.0, 0.025, name="chat", share=0.7), Target(10.0, 0.2, 0.002, 0.05, "batch", 0.3))
    assert notes == [TRANSPORT.format(" for chat")]


def test_a_single_class_needs_no_name_and_no_share(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[[class]]\nttft = "1s"\nitl = "25ms"\ntransport = "1ms"\n')
    assert parse_target(str(file)) == ((Target(1.0, 0.025, 0.001),), [])


def test_epsilon_from_outside_takes_the_place_of_all(tmp_path: Path) -> None:
    file = tmp_path / "classes.toml"
    file.write_text(CHAT + BATCH)
    assert [target.epsilon for target in parse_target(str(file), epsilon=0.02)[0]] == [0.02, 0.02]
    with pytest.raises(ValueError, match="epsilon must be in"):
        parse_target("ttft=1s,itl=25ms", epsilon=2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft=1s,tpot=25ms", "target 'ttft=1s,tpot=25ms': unknown name 'tpot'; known: ttft, itl, transport, epsilon, level"),
        ("tfft=1s", "target 'tfft=1s': unknown name 'tfft'; did you mean ttft? known: ttft, itl, transport, epsilon, level"),
        ("ttft=1,itl=25ms", "target 'ttft=1,itl=25ms': a duration needs a unit, got '1'; write 1ms or 1s"),
        ("ttft=1s", "target 'ttft=1s': itl is missing; write for example ttft=1s,itl=25ms,transport=2ms"),
        ("fast", "target 'fast': expected name=value, found 'fast'; write ttft=1s,itl=25ms,transport=2ms, or name a TOML file"),
        ("ttft=1s,itl=1ms,itl=2ms", "target 'ttft=1s,itl=1ms,itl=2ms': itl is given twice; write it once"),
        ("ttft=0s,itl=1ms", "ttft_s must be a positive time, got 0; write for example itl=25ms"),
        ("ttft=1s,itl=1ms,epsilon=20", "target 'ttft=1s,itl=1ms,epsilon=20': a share must be in 0 to 1, got '20'; write 20% or 0.2"),
        ("classes.toml", "classes.toml: expected a TOML file that exists"),
    ],
)
def test_a_wrong_string_is_said_in_one_line(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_target(text)


def test_transport_must_leave_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"transport must be in \[0, itl\), got 30 ms against itl 25 ms"):
        parse_target("ttft=1s,itl=25ms,transport=30ms")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table [[class]] for each class, with name, share, ttft and itl"),
        ('[class]\nname = "chat"', "expected a table [[class]] for each class, with name, share, ttft and itl"),
        ("x = 1\n" + CHAT, "expected nothing but [[class]] tables at the top, found 'x'"),
        ("[[class]\n", "expected a TOML file (Expected ']]' at the end of an array declaration (at line 1, column 8))"),
        (CHAT, "expected shares that sum to 1, not to 0.7 (0.7)"),
        (CHAT + BATCH.replace("30%", "40%"), "expected shares that sum to 1, not to 1.1 (0.7 + 0.4)"),
        (CHAT + CHAT, "expected a name of its own for each class, found 'chat'"),
        (CHAT + BATCH.replace('"batch"', '"1"'), "expected in class 2 (1) a name of letters, digits, - and _, a letter first, found '1'"),
        (CHAT.replace("share = 0.7\n", "") + BATCH, "expected in class 1 (chat) a line share = ..."),
        (CHAT.replace('"1s"', "1") + BATCH, 'expected in class 1 (chat) ttft with its unit and in quotes, such as "25ms", found 1'),
        (
            CHAT + BATCH.replace('"token"', '"step"'),
            "expected in class 2 (batch) a level that this version knows: token, request, p99_itl, found 'step'",
        ),
        (
            CHAT + BATCH.replace("epsilon", "epsilom"),
            "expected in class 2 (batch) nothing but name, share, ttft, itl, transport, epsilon, level, found 'epsilom'",
        ),
        (
            CHAT.replace("25ms", "25") + BATCH,
            "expected in class 1 (chat) values that a target can have: a duration needs a unit, got '25'; write 25ms or 25s",
        ),
    ],
)
def test_a_wrong_file_is_said_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "classes.toml"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        parse_target(str(file))
    assert str(caught.value) == f"{file}: {message}"
