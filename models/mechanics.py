"""What an engine does to its requests whatever the policy: arrive, take cache blocks, be preempted, be admitted.

All functions are compiled and change the records of `headway.models.state` in place. The same records serve the exact
simulator and a live engine: only who says how long a step took differs.
"""

from __future__ import annotations

import math

from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import FAILED, RUNNING, WAITING
from headway.models.state import RELEASED_IDS, RUNNING_IDS, WAITING_IDS


@compiled_inline
def release(i, r, e, ids):
    """Give the blocks of a request back to the pool.

    Args:
        i: request id.
        r: its record.
        e: the books.
        ids: id table.
    """
    if r.blocks > 0:
        e.free += r.blocks
        r.blocks = 0
        ids[RELEASED_IDS, e.n_released] = i
        e.n_released += 1


@compiled_inline
def end_request(i, r, e, ids, status):
    """Take a request out of the books.

    Args:
        i: request id.
        r: its record.
        e: the books.
        ids: id table.
        status: FINISHED, REJECTED, EXPIRED or FAILED.
    """
    r.status = status
    e.done += 1
    release(i, r, e, ids)


@compiled
def arrive(req, e, ids, block, pool, watermark, max_len):
    """Queue every request that has arrived by now. One that can never fit fails here, where it costs nothing.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        block: tokens in a cache block [tokens].
        pool: cache blocks in all.
        watermark: share of the pool that admission keeps free, in [0, 1).
        max_len: longest prompt and output [tokens].
    """
    usable = pool - math.ceil(watermark * pool)
    while e.arrived < len(req) and req[e.arrived].arrival_s <= e.now_s:
        i = e.arrived
        r = req[i]
        e.arrived += 1
        length = r.prompt + r.output
        if length > max_len or math.ceil(length / block) > usable:
            end_request(i, r, e, ids, FAILED)
        else:
            r.status = WAITING
            ids[WAITING_IDS, e.tail] = i
            e.tail += 1


@compiled
def to_front(i, e, ids):
    """Put a request back in front of the queue.

    Args:
        i: request id.
        e: the books.
        ids: id table.
    """
    if e.head == 0:
        for j in range(e.tail, 0, -1):
            ids[WAITING_IDS, j] = ids[WAITING_IDS, j - 1]
        e.head += 1
        e.tail += 1
    e.head -= 1
    ids[WAITING_IDS, e.head] = i


@compiled
def preempt_last(req, e, ids):
    """Preempt the request admitted last, by recomputation: its blocks come free, its work is to be done again.

    Args:
        req: requests.
        e: the books; at least one request runs.
        ids: id table.

    Returns:
        (request id, tokens that its part of this step gives back to the budget).
    """
    e.n_running -= 1
    i = ids[RUNNING_IDS, e.n_running]
    r = req[i]
    x = r.take
    r.take = 0.0
    if x < 0.0:
        e.n_decode -= 1.0
        e.kv_read -= r.prompt + r.emitted
    elif x > 0.0:
        e.prefill -= x
        e.pairs -= x * (r.computed + 0.5 * x)
        e.chunks -= 1.0
    release(i, r, e, ids)
    r.computed = 0.0
    r.goal = r.prompt + r.emitted
    r.status = WAITING
    e.preempted += 1
    to_front(i, e, ids)
    return i, abs(x)


@compiled_inline
def schedule_decode(r, e, block):
    """Give a running request one token to decode, with the cache block it may need.

    Args:
        r: its record, the prompt computed.
        e: the books.
        block: tokens in a cache block [tokens].

    Returns:
        True if done, False if the pool lacks the block.
    """
    length = r.prompt + r.emitted
    if length > r.blocks * block:
        need = math.ceil(length / block) - r.blocks
        if need > e.free:
            return False
        e.free -= need
        r.blocks += need
    r.take = -1.0
    e.n_decode += 1.0
    e.kv_read += length
    return True


@compiled_inline
def schedule_chunk(r, e, x, block, reserve_full, keep_free):
    """Give a request a chunk of its prompt, with the cache blocks it needs.

    Args:
        r: its record.
        e: the books.
        x: chunk [tokens].
        block: tokens in a cache block [tokens].
        reserve_full: take the blocks of the whole prompt with the first chunk.
        keep_free: blocks that must stay free.

    Returns:
        True if done, False if the pool lacks the blocks.
    """
    end = r.goal if reserve_full else r.computed + x
    need = max(math.ceil(end / block) - r.blocks, 0)
    if need > e.free - keep_free:
        return False
    e.free -= need
    r.blocks += need
    r.take = x
    e.prefill += x
    e.pairs += x * (r.computed + 0.5 * x)
    e.chunks += 1.0
    return True


@compiled_inline
def admit(i, r, e, ids):
    """Move a request from the queue to the running set. Its place in the queue is closed by whoever walks the queue.

    Args:
        i: request id.
        r: its record.
        e: the books.
        ids: id table.
    """
    r.status = RUNNING
    if not r.admitted_s >= 0.0:
        r.admitted_s = e.now_s
    ids[RUNNING_IDS, e.n_running] = i
    e.n_running += 1
