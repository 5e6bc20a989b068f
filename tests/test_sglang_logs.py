"""SGLang's decode and prefill lines: from which of them a step time follows."""

from __future__ import annotations

from pathlib import Path

from tests.engine_lines import aside_of, decode, prefill, refused, table_of


def test_a_decode_line_after_another_is_an_average_of_steps(tmp_path: Path) -> None:
    log = "".join(decode(8, 60_000 + 8 * 25 * k, 200.0) for k in range(5))
    table = table_of(tmp_path, log, "sglang")
    assert table.frame["step_time_s"].to_list() == [0.04] * 4  # 8 requests / 200 tokens per second
    assert table.frame["decode_requests"].to_list() == [8] * 4
    assert table.frame["decode_kv_tokens"].to_list() == [60_100, 60_300, 60_500, 60_700]  # in the middle of each window
    assert table.frame["steps_averaged"].to_list() == [25] * 4
    assert table.frame["source"].to_list() == ["TP0"] * 4
    assert table.frame["queued_requests"].to_list() == [2] * 4
    assert "averages over 25 steps (seen in how the cache grew)" in table.warnings[0]
    assert aside_of(table) == {"first_of_stream": 1}
    assert table.missing == ()
    said = table_of(tmp_path, "server_args=ServerArgs(decode_log_interval=10, x=1)\n" + log, "sglang")
    assert said.frame["steps_averaged"].to_list() == [10] * 4
    assumed = table_of(tmp_path, decode(8, 60_000, 200.0) + decode(6, 59_000, 200.0), "sglang")
    assert assumed.frame["steps_averaged"].to_list() == [40]
    assert "the default of decode_log_interval, assumed" in assumed.warnings[0]
    assert assumed.frame["decode_requests"].to_list() == [7]
    assert assumed.frame["step_time_s"].to_list() == [0.035]
    assert any("in 1 line the requests changed" in text for text in assumed.warnings)


def test_the_first_decode_line_after_idle_or_a_prefill_is_set_aside(tmp_path: Path) -> None:
    access = '[2026-01-02 03:04:05] INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    log = (
        prefill(103, None) + decode(1, 137, 1.06) + decode(1, 177, 80.0)
        + access + prefill(18, None) + decode(1, 234, 3.17) + access + decode(1, 274, 82.0)
    )  # fmt: skip
    table = table_of(tmp_path, log, "sglang")
    assert table.frame["step_time_s"].to_list() == [1 / 80, 1 / 82]
    assert aside_of(table) == {"averaged_over_idle": 2, "incomplete": 2}
    assert any("decoding alone" in said for said in table.warnings)


def test_accepted_tokens_ranks_and_other_prefixes(tmp_path: Path) -> None:
    prefix = "2026-01-02 03:04:05 INFO 31223 [DP{} TP{} EP{} scheduler_metrics_mixin.py:222] "
    log = ""
    for k in range(3):
        for rank in (3, 5):
            line = decode(
                32, 150_000 + 100 * k, 640.0, more="accept len: 2.00, pre-allocated usage: 0.00, #retracted-req: 0, ", mark=" [4711],"
            )
            log += "  2% 1/64 [00:04<04:51,  4.62s/it]" + prefix.format(rank, rank, rank) + line.split("] ", 1)[1]
    table = table_of(tmp_path, log, "sglang")
    assert sorted(table.frame["source"].to_list()) == ["DP3", "DP3", "DP5", "DP5"]
    assert table.frame["step_time_s"].to_list() == [0.1] * 4  # 32 * 2 / 640
    assert "accept len" in table.warnings[0]
    assert aside_of(table) == {"first_of_stream": 2}
    without = "".join(decode(43, 0, 385.0, rank="") for _ in range(3)) + decode(43, 9, 385.0, rank="")
    table = table_of(tmp_path, without, "sglang")
    assert table.missing == ("decode_kv_tokens",)
    assert table.frame["decode_kv_tokens"].to_list() == [0, 0, 0]
    assert set(table.frame["source"]) == {"engine"}
    sliding = decode(1, 100, 50.0, key="#full token") + decode(1, 140, 50.0, key="#full token", more="#swa token: 7, ")
    assert table_of(tmp_path, sliding, "sglang").frame["decode_kv_tokens"].to_list() == [120]


def test_a_prefill_is_timed_only_where_nothing_else_can_have_run(tmp_path: Path) -> None:
    log = (
        prefill(8192, 800.0, pending=9000)
        + prefill(8192, 16_384.0, pending=808)  # work was left waiting and nobody decoded: one batch
        + prefill(808, 8080.0, pending=0)
        + prefill(256, 12.0, pending=0)  # nothing was waiting: the engine was idle
        + prefill(256, 900.0, pending=0, queued=1, running=3)  # others decoded
        + prefill(256, 900.0, pending=0, running=3)
        + prefill(256, 900.0, queued=1)
        + prefill(256, 900.0, glued="  2% 1/64 [00:04<04:51,  4.62s/it]")  # an older version: the throughput of the batch before
        + prefill(256, None)
    )
    table = table_of(tmp_path, log, "sglang")
    assert table.frame["step_time_s"].to_list() == [0.5, 0.1]
    assert table.frame["prefill_tokens"].to_list() == [8192, 808]
    assert table.frame["prefill_requests"].to_list() == [1, 1]
    assert table.frame["steps_averaged"].to_list() == [1, 1]
    assert table.frame["decode_requests"].to_list() == [0, 0]
    assert table.missing == ("prefill_pairs",)  # what the chunks had in the cache is not in the line
    assert aside_of(table) == {"first_of_stream": 1, "averaged_over_idle": 5, "incomplete": 1}


def test_sglang_logs_without_a_step_say_why(tmp_path: Path) -> None:
    said = refused(tmp_path, prefill(100, None) + prefill(100, 900.0) + decode(1, 5, 2.0))
    assert said == (
        "engine.log: expected a step in SGLang's decode and prefill lines; of 3 lines none can be timed (2 averaged over idle time or "
        "over prefills and decodes, 1 without a duration: time stamps resolve a second): only a decode line right after another decode "
        "line is free of prefills and idle time; record forward pass metrics, or a longer log of steady decoding"
    )
    for cut in range(1, 30):
        table = table_of(tmp_path, decode(8, 100, 200.0) * 2 + decode(8, 100, 123.45)[:-cut], "sglang")
        assert aside_of(table)["first_of_stream"] == 1
        # whatever is left of the last line, no half number is taken for a whole one
        assert table.frame["step_time_s"].to_list() in ([0.04, 8 / 123.45], [0.04])
