"""The adapter's waiting queue: always the order of its law's keys, whatever is put in, taken out and renewed in between; shares; versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers.policy import Policy
from headway.engines.export import gains_json
from headway.engines.vllm.gains_file import LoadedGains, gains_of
from headway.engines.vllm.prompt_queue import PromptQueue, Waiter
from headway.engines.vllm.versions import KNOBS, TRIED, lacking
from tests.fake_vllm import FakeRequest
from tests.test_export import LAWS, record

VERDICT = {"verdict": "measured", "reason": "test", "numbers": {}}
ACTIONS = st.lists(
    st.tuples(st.sampled_from(("add", "pop", "remove", "emit", "renew", "wait")), st.integers(1, 3000), st.integers(0, 1)), max_size=60
)


def gains(**policy) -> LoadedGains:
    return gains_of(gains_json(record(LAWS[5], Policy(**policy)), VERDICT, carried=("class_shares",)))


class Line:
    """A queue, and the requests that should be in it."""

    def __init__(self, found: LoadedGains) -> None:
        self.now_s, self.waiters = 100.0, {}
        self.queue = PromptQueue(found.law, self.waiter, lambda: self.now_s, found.shares, found.law.max_tokens)
        self.inside: list[FakeRequest] = []
        self.count = 0

    def waiter(self, request: FakeRequest) -> Waiter:
        return self.waiters.setdefault(request.request_id, Waiter(request, self.now_s, int(request.arrival_time), 0.0))

    def add(self, prompt: int, class_id: int) -> FakeRequest:
        self.count += 1
        request = FakeRequest(f"r{self.count}", prompt, 9, float(class_id))
        self.queue.add_request(request)
        self.inside.append(request)
        return request

    def best(self) -> float:
        law = self.queue.law
        assert law is not None
        keys = []
        for request in self.inside:
            w = self.waiters[request.request_id]
            left = request.num_tokens - request.num_computed_tokens
            keys.append(law.key(left, w.arrival_s, self.now_s, w.class_id, started=request.num_output_tokens > 0))
        return min(keys)

    def key(self, request: FakeRequest) -> float:
        law, w = self.queue.law, self.waiters[request.request_id]
        assert law is not None
        return law.key(request.num_tokens, w.arrival_s, self.now_s, w.class_id, started=request.num_output_tokens > 0)


@given(ACTIONS)
def test_whoever_is_next_has_the_least_key_and_the_count_is_right(actions: list[tuple[str, int, int]]) -> None:
    line = Line(gains(order="slack", triage="none", aging_rate=0.2))
    queue = line.queue
    for what, number, class_id in actions:
        if what == "add":
            line.add(number, class_id)
        elif what == "wait":
            line.now_s += number / 100.0
        elif what == "renew":
            assert queue.law is not None
            queue.law.used_tps *= 0.5 + number / 2000.0
            queue.law.renewals += 1
            assert queue.due(line.now_s) == []
        elif line.inside and what == "pop":
            first = queue.peek_request()
            assert queue.pop_request() is first
            assert line.key(first) == pytest.approx(line.best(), abs=1e-9)
            line.inside.remove(first)
        elif line.inside and what == "remove":
            queue.remove_requests([line.inside.pop(number % len(line.inside))])
        elif line.inside:  # preempted after its first token: it comes back in front
            request = queue.pop_request()
            request.num_output_tokens, request.num_preemptions = 1, 1
            queue.prepend_requests([request])
            assert queue.peek_request().num_output_tokens == 1
        assert len(queue) == len(line.inside) == len(list(queue))
        assert bool(queue) == bool(line.inside)
        assert {r.request_id for r in queue} == {r.request_id for r in line.inside}
    assert queue.fault is None


def test_an_empty_queue_and_a_stranger_are_refused_as_vllm_does() -> None:
    queue = Line(gains(order="slack", triage="none")).queue
    for ask in (queue.peek_request, queue.pop_request):
        with pytest.raises(IndexError, match="empty queue"):
            ask()
    with pytest.raises(ValueError, match="not in the queue"):
        queue.remove_request(FakeRequest("x", 1, 1))


def test_triage_refuses_only_who_is_infeasible_and_only_once() -> None:
    line = Line(gains(order="slack", triage="reject"))
    chat, batch = line.add(500, 0), line.add(500, 1)
    assert line.queue.due(line.now_s + 0.5) == []
    assert line.queue.due(line.now_s + 1.5) == [chat]
    line.queue.remove_requests([chat])
    assert line.queue.due(line.now_s + 1.6) == []
    assert list(line.queue) == [batch]


def test_a_deferred_request_goes_behind_and_a_degraded_one_gets_its_own_target() -> None:
    line = Line(gains(order="edf", triage="defer"))
    chat, batch = line.add(500, 0), line.add(500, 1)
    assert line.queue.peek_request() is chat
    line.now_s += 5.0
    assert line.queue.due(line.now_s) == []
    assert line.queue.peek_request() is batch
    line = Line(gains(order="edf", triage="degrade", degrade=2.0))
    chat = line.add(500, 0)
    assert line.queue.due(line.now_s + 1.5) == []
    assert line.waiters[chat.request_id].degraded
    assert line.queue.due(line.now_s + 2.5) == [chat]


def test_a_class_behind_its_share_goes_first() -> None:
    found = gains(order="slack", triage="none", class_shares=(1.0, 3.0))
    assert found.shares == (1.0, 3.0)
    line = Line(found)
    chat, batch = line.add(500, 0), line.add(500, 1)
    assert line.queue.peek_request() is chat
    line.queue.book([(0, 400)], {0, 1})
    assert line.queue.deficits == [-300.0, 300.0]
    assert line.queue.pop_request() is batch
    line.queue.book([(1, 400)], {0, 1})
    assert line.queue.deficits == [-200.0, 200.0]
    line.queue.book([(0, 100)], {0})
    assert line.queue.deficits == [-200.0, 0.0]


def test_a_law_that_raises_leaves_the_order_of_arrival_and_says_so() -> None:
    line = Line(gains(order="slack", triage="none"))

    def broken(*_, **__):
        raise ZeroDivisionError

    assert line.queue.law is not None
    line.queue.law.key = broken
    first = line.add(3000, 1)
    line.now_s += 1.0
    line.add(10, 0)
    assert line.queue.peek_request() is first
    assert isinstance(line.queue.fault, ZeroDivisionError)


def test_what_a_version_lacks_is_named_with_what_stands_in() -> None:
    assert lacking("0.32.0") == lacking("0.31.0+cpu") == {}
    assert "max_num_running_reqs" in lacking("0.16.0", "member")["max_num_active_reqs"]
    assert set(lacking("0.16.0", "flag")) == {"--max-num-active-seqs", "--max-num-queued-reqs", "--max-num-queued-tokens"}
    assert {knob.since for knob in KNOBS} <= set(TRIED)
    with pytest.raises(ValueError, match=r"a version of vLLM is written as 0.32.0, got 'main'"):
        lacking("main")
