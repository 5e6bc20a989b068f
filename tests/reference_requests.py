"""The requests of the second scheduler and their goodput, for the tests alone: tokens are kept as a list of times and judged at the end."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

from headway.models.signals import Target
from headway.models.workload import Workload
from tests.outlook import Stream
from tests.reference_schedule import Gains

STATUS = ("future", "waiting", "running", "finished", "cancelled", "rejected", "expired", "failed", "abandoned")
"""In the order of the numbers in headway.models.goodput."""


@dataclasses.dataclass(eq=False)
class Request:
    """One request. `to_compute` is the prompt, and after a recomputation also what it had emitted; `hit` and `gains` are what its key
    counts on while it waits."""

    number: int
    arrival_s: float
    prompt: int
    output: int
    target: Target
    kind: int
    to_compute: int
    units: list[int]
    patience_s: float
    cancel_s: float
    after: int
    think_s: float
    computed: int = 0
    blocks: int = 0
    held: list[int] = dataclasses.field(default_factory=list)
    swapped: int = 0
    hit: int = 0
    tail_at: int = 0
    stepped: int = -1
    begun: bool = False
    gains: Gains | None = None
    deferred: bool = False
    degraded: bool = False
    spared: bool = False
    status: str = "future"
    ended_s: float = math.inf
    token_times_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def emitted(self) -> int:
        return len(self.token_times_s)

    @property
    def stream(self) -> Stream:
        return Stream(self.prompt + self.emitted, self.emitted, self.kind)

    @property
    def decodes(self) -> bool:
        return self.computed >= self.to_compute

    @property
    def cached(self) -> int:
        """Tokens whose cache is computed: the last one that came is not."""
        return max(self.to_compute, self.prompt + self.emitted - 1) if self.decodes else self.computed

    @property
    def ended(self) -> bool:
        return STATUS.index(self.status) >= STATUS.index("finished")

    def has_left(self, now_s: float) -> bool:
        """Whether its client has lost patience, or has closed the stream."""
        return (not self.emitted and now_s > self.arrival_s + self.patience_s) or now_s > self.arrival_s + self.cancel_s

    def leaves(self, now_s: float) -> str:
        """Status of one whose client leaves now: cancelled if all that was due has come in time, else abandoned."""
        on_time, owed = judge("running", self.arrival_s, self.token_times_s, self.output, self.target, now_s)
        return "cancelled" if on_time == owed else "abandoned"

    def verdict(self, end_s: float) -> tuple[int, int]:
        """Tokens on time and owed, by what the class was promised."""
        return judge(self.status, self.arrival_s, self.token_times_s, self.output, self.target, min(self.ended_s, end_s))

    def softened(self, end_s: float, degrade: float) -> tuple[int, int]:
        """Tokens on time and owed, a degraded one by the times that it was degraded to: those at the engine, stretched."""
        way_s = self.target.transport_s if self.degraded else 0.0
        factor = degrade if self.degraded else 1.0
        ttft_s, itl_s = factor * (self.target.ttft_s - way_s) + way_s, factor * (self.target.itl_s - way_s) + way_s
        target = Target(ttft_s, itl_s, self.target.transport_s)
        return judge(self.status, self.arrival_s, self.token_times_s, self.output, target, min(self.ended_s, end_s))


def requests_of(workload: Workload, targets: tuple[Target, ...]) -> list[Request]:
    """All requests before the first arrival. Who follows another arrives once that one has ended."""
    found = []
    for i in range(len(workload)):
        kind, prompt = int(workload.class_id[i]), int(workload.prompt_tokens[i])
        prefix = workload.prefix
        units = [int(u) for u in prefix.ids[prefix.start[i] : prefix.start[i + 1]]] if prefix is not None else []
        after = -1 if workload.after is None else int(workload.after[i])
        found.append(
            Request(
                number=i,
                arrival_s=float(workload.arrival_s[i]) if after < 0 else math.inf,
                prompt=prompt,
                output=int(workload.output_tokens[i]),
                target=targets[kind],
                kind=kind,
                to_compute=prompt,
                units=units,
                patience_s=math.inf if workload.patience_s is None else float(workload.patience_s[i]),
                cancel_s=math.inf if workload.cancel_s is None else float(workload.cancel_s[i]),
                after=after,
                think_s=0.0 if workload.think_s is None else float(workload.think_s[i]),
            )
        )
    return found


def judge(status: str, arrival_s: float, token_times_s: list[float], output: int, target: Target, end_s: float) -> tuple[int, int]:
    """Tokens on time and tokens owed of one request, from the times of its tokens: section 5 of the words of the field.

    A token is on time iff its request's TTFT was met and its gap is at most the ITL target, all at the client. A gap g owes
    max(1, floor(g / itl)). Who was turned away, or left because it was served late, owes every token; who was cut off, or left
    in time, owes what was due by the end of the run, or by then.
    """
    if status == "future":
        return 0, 0
    on_time = owed = 0
    if token_times_s:
        met = token_times_s[0] - arrival_s + target.transport_s <= target.ttft_s
        on_time, owed = int(met), 1
        for before, after in pairwise(token_times_s):
            gap_s = after - before + target.transport_s
            owed += max(1, math.floor(gap_s / target.itl_s))
            on_time += met and gap_s <= target.itl_s
    if status in ("rejected", "expired", "failed", "abandoned"):
        return on_time, max(owed, output)
    if status != "finished":
        missing = output - len(token_times_s)
        if token_times_s:
            due = math.floor((end_s - token_times_s[-1]) / target.itl_s)
        else:
            late_s = end_s - (arrival_s + target.first_token_s)
            due = 0 if late_s < 0 else 1 + math.floor(late_s / target.itl_s)
        owed += min(missing, max(due, 0))
    return on_time, owed
