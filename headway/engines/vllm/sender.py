"""The load generator's process: sends requests at their times and stamps every token that comes back. Imports no numerics.

    python -m headway.engines.vllm.sender job.json records.json

It is a process of its own so that nothing else this side does can make it late, and it measures how late it was itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

BEAT_S = 0.02
"""Between two looks at how far the event loop lags behind [s]."""
LEAD_S = 0.5
"""From all being ready to the first request [s]."""
FIRST_TOKEN = 10
"""Smallest token id in a prompt: those before it may be special."""
DATA, DONE = b"data: ", b"[DONE]"


def body(job: dict[str, Any], k: int) -> bytes:
    """The body of a request. Its prompt is drawn from the seed, so that no two begin alike and a cache of prefixes finds nothing.

    Args:
        job: as `headway.engines.vllm.clients` writes it.
        k: number of the request.

    Returns:
        JSON.
    """
    one, chance = job["requests"][k], random.Random(job["seed"] * 1_000_003 + k)
    prompt = chance.choices(range(FIRST_TOKEN, job["vocab"]), k=one["prompt_tokens"])
    content = {"model": job["model"], "prompt": prompt, "max_tokens": one["output_tokens"], "temperature": 0}
    content |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    if one.get("extra"):
        content["vllm_xargs"] = one["extra"]
    return json.dumps(content, separators=(",", ":")).encode()


class Sender:
    """One run of a job.

    Args:
        job: requests with their times, and where they go.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        """Prepare all bodies before the clock starts."""
        self.job, self.requests = job, job["requests"]
        self.bodies = [body(job, k) for k in range(len(self.requests))]
        self.records: list[dict[str, Any]] = [{"status": "future"} for _ in self.requests]
        self.lags: list[float] = []
        self.zero_s = 0.0

    async def run(self) -> None:
        """Send everything, and wait until all has ended or the time is up."""
        import aiohttp

        link = aiohttp.TCPConnector(limit=0, force_close=False, keepalive_timeout=120)
        # no limit of the library's own: what ends a request is its patience, its cancel time, or the end of the run
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)
        async with aiohttp.ClientSession(connector=link, timeout=timeout) as session:
            beat = asyncio.create_task(self._beat())
            self.zero_s = time.monotonic() + LEAD_S
            work = asyncio.create_task(self._backlog(session) if self.job.get("outstanding") else self._arrivals(session))
            limit = self.job.get("limit_s")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
            await asyncio.wait([work], timeout=None if limit is None else limit + LEAD_S)
            if not work.done():
                work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            beat.cancel()

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT_S)
            self.lags.append(time.monotonic() - before - BEAT_S)

    async def _arrivals(self, session: Any) -> None:
        """Each at its time, whatever became of those before."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            for k, one in enumerate(self.requests):
                await asyncio.sleep(max(self.zero_s + one["at_s"] - time.monotonic(), 0.0))
                task = asyncio.create_task(self._one(session, k))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks:
                await asyncio.wait(tasks)
        finally:
            await _cancelled(tasks)

    async def _backlog(self, session: Any) -> None:
        """So many on their way at any time."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            for k in range(len(self.requests)):
                tasks.add(asyncio.create_task(self._one(session, k)))
                if len(tasks) >= self.job["outstanding"]:
                    _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while tasks:
                _, tasks = await asyncio.wait(tasks)
        finally:
            await _cancelled(tasks)

    async def _one(self, session: Any, k: int) -> None:
        """One request to its end, its client's patience, or its client's leaving."""
        one, record = self.requests[k], self.records[k]
        record |= {"status": "running", "sent_s": time.monotonic() - self.zero_s, "token_s": []}
        came = self.zero_s + one.get("at_s", record["sent_s"])
        stream = asyncio.create_task(self._stream(session, k, record))
        try:
            for name, status in (("patience_s", "gave up"), ("cancel_s", "left")):
                if one.get(name) is not None and not stream.done():
                    await asyncio.wait([stream], timeout=max(came + one[name] - time.monotonic(), 0.0))
                    waiting = name == "cancel_s" or not record["token_s"]
                    if not stream.done() and waiting:
                        record["status"] = status
                        break
            else:
                await stream
        except Exception as error:  # noqa: BLE001  # whatever befalls a request is its record, not the run's end
            record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            if not stream.done():
                stream.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await stream
            record["end_s"] = time.monotonic() - self.zero_s

    async def _stream(self, session: Any, k: int, record: dict[str, Any]) -> None:
        """Read a stream; a token's stamp is taken when the bytes that bring it are there."""
        headers, reason = {"Content-Type": "application/json", "X-Request-Id": f"headway-{k}"}, None
        async with session.post(self.job["url"] + "/v1/completions", data=self.bodies[k], headers=headers) as answer:
            if answer.status != 200:
                text = (await answer.text())[:300]
                record |= {"status": "refused" if answer.status in (429, 503) else "failed", "error": f"{answer.status} {text}"}
                return
            rest = b""
            while chunk := await answer.content.readany():
                at_s = time.monotonic() - self.zero_s
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(DATA) and not line.startswith(DATA + DONE):
                        count, ended = _read(line[len(DATA) :], record)
                        record["token_s"] += [at_s] * count
                        reason = ended or reason
        if record["status"] == "running":
            whole = len(record["token_s"]) == self.requests[k]["output_tokens"]
            record["status"] = "finished" if whole else "shed"
            if not whole:
                record["error"] = f"the stream ended after {len(record['token_s'])} tokens, finish reason {reason}"


def _read(data: bytes, record: dict[str, Any]) -> tuple[int, str | None]:
    """Tokens of one event, and why the stream ends, if it does."""
    event = json.loads(data)
    if "error" in event:
        record |= {"status": "failed", "error": str(event["error"])[:300]}
    choices = event.get("choices") or []
    if not choices:
        return 0, None
    ids = choices[0].get("token_ids")
    count = len(ids) if ids is not None else int(bool(choices[0].get("text")))
    return count, choices[0].get("finish_reason")


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def first_in_line() -> str:
    """Let this process run whenever it can: a client stands beside its server, and must not wait for a core that the server uses.

    Returns:
        "real time", "nicer" where the system allows no more, or "ordinary".
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # no such call here, or not allowed
        try:
            os.nice(-10)
        except OSError:
            return "ordinary"
        return "nicer"
    return "real time"


def main(job_file: str, out_file: str) -> None:
    """Run a job and write what became of it.

    Args:
        job_file: JSON.
        out_file: JSON to write.
    """
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    if job.get("cores"):
        os.sched_setaffinity(0, job["cores"])
    sender = Sender(job)
    priority = first_in_line()
    asyncio.run(sender.run())
    result = {
        "priority": priority,
        "records": sender.records,
        "lags_s": sender.lags,
        "zero_monotonic_s": sender.zero_s,
        "cpu_s": time.process_time(),
    }
    result["zero_epoch_s"] = time.time() - time.monotonic() + sender.zero_s
    Path(out_file).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
