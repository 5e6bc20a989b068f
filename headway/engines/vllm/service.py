"""What a vLLM server says of itself over HTTP and in its log: health, figures, the limits it really runs with."""

from __future__ import annotations

import ast
import http.client
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headway.models.signals import Limits

QUICK_S = 5.0
"""Longest wait for a figure [s]."""
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
TOKENS = re.compile(r"max_num_batched_tokens=(\d+)")
LENGTH = re.compile(r"Using max model len (\d+)")
CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)")


class Sample(NamedTuple):
    """One figure of /metrics.

    Args:
        name: of the figure.
        labels: its labels.
        value: its value.
    """

    name: str
    labels: Mapping[str, str]
    value: float


class Service:
    """A server's address.

    Args:
        url: such as "http://127.0.0.1:8000".

    Raises:
        ValueError: no http address.
    """

    def __init__(self, url: str) -> None:
        """Take the address apart."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"--url must be an http address, got {url!r}; write for example http://127.0.0.1:8000")
        self.host, self.port, self.path = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self.url = f"http://{self.host}:{self.port}{self.path}"

    def get(self, path: str, timeout_s: float = QUICK_S) -> bytes:
        """Ask for a page.

        Args:
            path: below the address.
            timeout_s: longest wait [s].

        Returns:
            Its content.

        Raises:
            ValueError: nothing answers there, or another status than 200.
        """
        link = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            link.request("GET", self.path + path)
            answer = link.getresponse()
            content = answer.read()
        except OSError as error:
            raise ValueError(f"{self.url} does not answer ({error}); is the server running?") from None
        except http.client.HTTPException as error:
            raise ValueError(f"{self.url} is no web server ({type(error).__name__})") from None
        finally:
            link.close()
        if answer.status != 200:
            raise ValueError(f"{self.url}{path} answered with status {answer.status}, not 200")
        return content

    def healthy(self) -> bool:
        """Whether it answers and says that it is well.

        Returns:
            True if so.
        """
        try:
            self.get("/health", 2.0)
        except ValueError:
            return False
        return True

    def model(self) -> tuple[str, int | None]:
        """What is served.

        Returns:
            (name, longest prompt and output together [tokens], None where it does not say).

        Raises:
            ValueError: no list of models there.
        """
        try:
            first = json.loads(self.get("/v1/models"))["data"][0]
            return str(first["id"]), first.get("max_model_len")
        except (KeyError, IndexError, TypeError, json.JSONDecodeError):
            raise ValueError(f"{self.url}/v1/models is no list of models; is this a vLLM server?") from None

    def version(self) -> str | None:
        """The version of vLLM.

        Returns:
            Such as "0.32.0"; None where it does not say.
        """
        try:
            return str(json.loads(self.get("/version"))["version"])
        except (ValueError, KeyError, TypeError):
            return None

    def samples(self) -> list[Sample]:
        """Every figure of /metrics.

        Returns:
            Samples.

        Raises:
            ValueError: no such page.
        """
        lines = self.get("/metrics").decode(errors="replace").splitlines()
        matched = [one for line in lines if (one := SAMPLE.match(line)) is not None]
        return [Sample(one[1], dict(LABEL.findall(one[2] or "")), float(one[3])) for one in matched]

    def figure(self, name: str) -> float | None:
        """One figure, over all its labels.

        Args:
            name: such as "vllm:generation_tokens_total".

        Returns:
            Its sum; None where there is none.
        """
        values = [s.value for s in self.samples() if s.name == name]
        return sum(values) if values else None

    def wait_idle(self, timeout_s: float = 60.0) -> bool:
        """Wait until it has nothing to do.

        Args:
            timeout_s: longest wait [s].

        Returns:
            Whether it has come to rest.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            busy = sum(s.value for s in self.samples() if s.name in ("vllm:num_requests_running", "vllm:num_requests_waiting"))
            if busy == 0:
                return True
            time.sleep(0.2)
        return False


class ReadBack(NamedTuple):
    """What a server runs with, as far as it says.

    Args:
        limits: by field of `Limits` [tokens, requests].
        flags: of the command line, as its log names them, by vLLM's names; empty without a log.
        scheduling: "sync", "async", or None where it does not say.
        version: of vLLM, or None.
        model: its name.
        unknown: limits that it does not tell.
    """

    limits: dict[str, int]
    flags: dict[str, Any]
    scheduling: str | None
    version: str | None
    model: str
    unknown: tuple[str, ...]

    def as_limits(self) -> Limits:
        """As Headway's limits.

        Returns:
            Limits.

        Raises:
            ValueError: one that is needed is not told.
        """
        if self.unknown:
            raise ValueError(
                f"the server does not say {', '.join(self.unknown)}; give its log with --log, or the limits themselves, such as --max-seqs 64"
            )
        limits: dict[str, Any] = dict(self.limits)
        return Limits(**limits, scheduling=self.scheduling or "sync")


FIELDS = ("kv_tokens", "block_tokens", "max_seqs", "max_len", "max_tokens")


def read_back(service: Service, log: Path | None = None, given: Mapping[str, int] | None = None) -> ReadBack:
    """The limits that a server really runs with: from its figures and its log, never from what it was asked for.

    Args:
        service: the server.
        log: what it printed, where we have it.
        given: limits that the caller knows, by field; what the server says counts before them [tokens, requests].

    Returns:
        What is known.

    Raises:
        ValueError: it does not answer.
    """
    found: dict[str, int] = dict(given or {})
    name, longest = service.model()
    if longest:
        found["max_len"] = int(longest)
    text = log.read_text(encoding="utf-8", errors="replace") if log is not None and log.exists() else ""
    flags = _flags(text)
    scheduling = None
    for key, field in (("max_num_seqs", "max_seqs"), ("max_num_batched_tokens", "max_tokens")):
        if isinstance(flags.get(key), int):
            found[field] = flags[key]
    if said := TOKENS.findall(text):
        found["max_tokens"] = int(said[-1])
    if said := ASYNC.findall(text):
        scheduling = "async" if said[-1] == "enabled" else "sync"
    for sample in service.samples():
        if sample.name == "vllm:cache_config_info":
            block, blocks = sample.labels.get("block_size"), sample.labels.get("num_gpu_blocks")
            if block and block.isdigit():
                found["block_tokens"] = int(block)
                if blocks and blocks.isdigit():
                    found["kv_tokens"] = int(block) * (int(blocks) - 1)  # one block is vLLM's own, no request gets it
        elif sample.name == "headway_start_limit" and sample.labels.get("name") in FIELDS:
            found[sample.labels["name"]] = int(sample.value)
    if "kv_tokens" not in found and (said := CACHE.findall(text)):
        found["kv_tokens"] = int(said[-1].replace(",", ""))
    return ReadBack(found, flags, scheduling, service.version(), name, tuple(f for f in FIELDS if f not in found))


def _flags(text: str) -> dict[str, Any]:
    said = ARGUMENTS.findall(text)
    try:
        return ast.literal_eval(said[-1]) if said else {}
    except (ValueError, SyntaxError):  # a value that is no literal, such as an object's own text
        return {}
