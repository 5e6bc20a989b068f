"""What an engine does to its requests whatever the policy: take cache blocks, give them back, come in, end.

All functions are compiled and change the records of `headway.models.state` in place. The same records serve the exact
simulator and a live engine: only who says how long a step took differs.
"""

from __future__ import annotations

import math

from headway.models.cache import evict, file_units, hold, leave_tail, let_go, spared, take_tail
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import ABANDONED, CANCELLED, RUNNING
from headway.models.heap import push
from headway.models.state import COMING, ENDED, RELEASED_IDS, RUNNING_IDS

GATE, BY_CHUNK, IN_FULL = range(3)
"""How cache blocks are set aside for a newcomer's prompt: asked for in full and taken chunk by chunk, neither, or both."""
EXACT = 1.0 + 1e-9
"""A step of exactly the budget is on time whatever the clock's last digit says."""


@compiled_inline
def release(i, r, e, ids, units, unit_ids):
    """Give the blocks of a request back to the pool.

    Args:
        i: request id.
        r: its record.
        e: the books.
        ids: id table.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    if r.blocks + r.shared > 0:
        if e.caching > 0 and r.swapped == 0:
            leave_tail(i, r, e, units)
        e.free += r.blocks
        r.blocks = 0
        if r.shared > 0:
            let_go(r, e, units, unit_ids)
        ids[RELEASED_IDS, e.n_released] = i
        e.n_released += 1


@compiled
def call_followers(i, req, e, ids, keys):
    """Whoever waits for the end of a request comes its think time later.

    Args:
        i: request id that ended.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
    """
    j = req[i].follower
    while j >= 0:
        req[j].arrival_s = e.now_s + req[j].think_s
        push(keys, ids, COMING, 0, e.n_coming, req[j].arrival_s, j)
        e.n_coming += 1
        j = req[j].sibling


@compiled_inline
def end_request(i, req, e, ids, keys, status):
    """Take a request out of the books; its blocks are given back beside.

    Args:
        i: request id.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        status: FINISHED, REJECTED, ...
    """
    req[i].status = status
    e.queued -= req[i].goal - req[i].computed
    ids[ENDED, e.done] = i
    e.done += 1
    if req[i].follower >= 0:
        call_followers(i, req, e, ids, keys)


@compiled
def client_left(r, now_s, ttft_s, itl_s):
    """How a request ends whose client leaves.

    Args:
        r: its record.
        now_s: [s].
        ttft_s: target at the engine [s].
        itl_s: target [s].

    Returns:
        CANCELLED if nothing was late, else ABANDONED.
    """
    if r.emitted == 0.0:
        late = now_s > r.arrival_s + ttft_s
    else:
        late = r.on_time < r.owed or math.floor((now_s - r.last_s) / itl_s) >= 1.0
    return ABANDONED if late else CANCELLED


@compiled_inline
def take_blocks(r, e, need, units):
    """Take blocks that are known to be free.

    Args:
        r: record of the request.
        e: the books.
        need: how many.
        units: the prefix cache.
    """
    e.free -= need
    r.blocks += need
    if e.free < e.idle_blocks:
        evict(e, units)


@compiled_inline
def schedule_decode(r, e, block, units):
    """Give a running request one token to decode, with the cache block it may need.

    Args:
        r: its record, the prompt computed.
        e: the books.
        block: tokens in a cache block [tokens].
        units: the prefix cache.

    Returns:
        True if done, False if the pool lacks the block.
    """
    length = r.prompt + r.emitted
    held = r.blocks + r.shared * e.unit_blocks
    if length > held * block:
        need = math.ceil(length / block) - held
        if need > e.free:
            return False
        take_blocks(r, e, need, units)
    r.take = -1.0
    e.n_decode += 1.0
    e.kv_read += length
    return True


@compiled_inline
def schedule_chunk(r, e, x, block, units, unit_ids):
    """Give a running request a chunk of its prompt, with the cache blocks it needs.

    Args:
        r: its record.
        e: the books.
        x: chunk [tokens].
        block: tokens in a cache block [tokens].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        True if done, False if the pool lacks the blocks.
    """
    need = max(math.ceil((r.computed + x) / block) - r.blocks - r.shared * e.unit_blocks, 0)
    if need > e.free:
        return False
    take_blocks(r, e, need, units)
    book_chunk(r, e, x)
    if e.unit_blocks > 0 and r.shared < r.units:
        file_units(r, e, r.computed + x, units, unit_ids)
    return True


@compiled_inline
def book_chunk(r, e, x):
    """Book a chunk into the step's sums.

    Args:
        r: record of the request.
        e: the books.
        x: chunk [tokens].
    """
    r.take = x
    e.prefill += x
    e.pairs += x * (r.computed + 0.5 * x)
    e.chunks += 1.0


@compiled_inline
def enter(i, r, e, ids, cap, block, reservation, keep_free, units, unit_ids):
    """Let a request in from the queue with its first chunk, or with a decode if it comes back with its prompt computed.

    Args:
        i: request id.
        r: its record.
        e: the books; `left` holds the tokens left.
        ids: id table.
        cap: most prompt tokens of one request [tokens].
        block: tokens in a cache block [tokens].
        reservation: GATE, BY_CHUNK or IN_FULL.
        keep_free: blocks that must stay free.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        Tokens it was given [tokens]; 0 if the pool lacks the blocks.
    """
    found, idle, tokens, tail, begun = 0, 0, 0.0, 0, r.admitted_s >= 0.0
    if r.swapped == 0 and r.units > 0 and e.unit_blocks > 0:
        found, idle, tokens = spared(r, e, block, units, unit_ids)
    if begun and r.swapped == 0 and e.caching > 0 and units[e.tails + i].left > 0 and r.tail_at == found:
        tail = min(units[e.tails + i].left, math.floor((r.goal - 1.0) / block) - found * e.unit_blocks)
        tokens += tail * block
    start = r.computed + tokens
    x = min(r.goal - start, cap, e.left)
    if x > 0.0:
        end = r.goal if reservation == IN_FULL else start + x
    else:
        end = r.prompt + r.emitted
    had = found * e.unit_blocks + tail
    need = max(math.ceil(end / block) - had, r.swapped)
    whole = max(math.ceil(r.goal / block) - had, need) if reservation == GATE else need
    if whole + idle * e.unit_blocks + tail > e.free - keep_free:
        return 0.0
    if found > 0:
        hold(r, e, found, units, unit_ids)
    if begun and e.caching > 0 and units[e.tails + i].left > 0:
        take_tail(i, r, e, tail, units)
    if r.swapped != 0:
        e.moved += r.swapped
        r.swapped = 0
    elif x > 0.0:
        r.computed = tokens
        e.queued -= tokens
        if begun:
            e.recomputed -= tokens
        else:
            r.hit = tokens
    take_blocks(r, e, need, units)
    r.status = RUNNING
    if not begun:
        r.admitted_s = e.now_s
    ids[RUNNING_IDS, e.n_running] = i
    e.n_running += 1
    if e.unit_blocks > 0 and r.shared < r.units:
        file_units(r, e, r.computed + max(x, 0.0), units, unit_ids)
    if x > 0.0:
        book_chunk(r, e, x)
        return x
    r.take = -1.0
    e.n_decode += 1.0
    e.kv_read += r.prompt + r.emitted
    return 1.0


@compiled
def give_way(place, req, e, ids, swap, units, unit_ids):
    """Preempt a running request: its blocks come free, and what it had of this step goes back to the budget.

    Args:
        place: among the running.
        req: requests.
        e: the books.
        ids: id table.
        swap: keep what was computed outside of the cache, where something was.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        Request id.
    """
    i = ids[RUNNING_IDS, place]
    for k in range(place, e.n_running - 1):
        ids[RUNNING_IDS, k] = ids[RUNNING_IDS, k + 1]
    e.n_running -= 1
    r = req[i]
    x = r.take
    r.take = 0.0
    e.left += abs(x)
    if x < 0.0:
        e.n_decode -= 1.0
        e.kv_read -= r.prompt + r.emitted
    elif x > 0.0:
        e.prefill -= x
        e.pairs -= x * (r.computed + 0.5 * x)
        e.chunks -= 1.0
    if swap and r.computed > 0.0:
        r.swapped = r.blocks + r.shared * e.unit_blocks
        e.moved += r.swapped
        e.swapped += r.swapped
        release(i, r, e, ids, units, unit_ids)
    else:
        release(i, r, e, ids, units, unit_ids)
        e.recomputed += r.computed
        e.queued += r.prompt + r.emitted - r.goal + r.computed
        r.computed = 0.0
        r.goal = r.prompt + r.emitted
    e.preempted += 1
    e.gave_way += 1
    return i
