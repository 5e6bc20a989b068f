"""The prefix cache: prompts that begin alike share the blocks of their leading units, and what was computed stays until blocks run out.

What nobody holds counts as free blocks and waits, by age, in a list through its own records: nothing is searched. Beside the units it
is the tails of requests, their blocks after the units, outputs included: who was preempted finds them again.
"""

from __future__ import annotations

from headway.models.compiled import compiled, compiled_inline


@compiled_inline
def unlink(u, units):
    """Take a unit out of the list of those that nobody holds.

    Args:
        u: its id.
        units: the prefix cache.
    """
    older, newer = units[u].older, units[u].newer
    units[older].newer = newer
    units[newer].older = older


@compiled
def hit_units(r, units, unit_ids):
    """Leading units of a prompt that are cached now, leaving at least its last token to compute.

    Args:
        r: record of the request.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        (their number, how many of them nobody holds).
    """
    found, idle = 0, 0
    while found < r.units:
        unit = units[unit_ids[r.first_unit + found]]
        if unit.cached == 0:
            break
        idle += 1 if unit.holders == 0 else 0
        found += 1
    return found, idle


@compiled
def spared(r, e, block, units, unit_ids):
    """Prompt tokens that the cache would spare a request that came in now.

    Args:
        r: record of the request.
        e: the books.
        block: tokens in a cache block [tokens].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        (units, of them units that nobody holds, tokens [tokens]).
    """
    found, idle = hit_units(r, units, unit_ids)
    unit_tokens = e.unit_blocks * block
    while found * unit_tokens > r.goal - 1.0:
        found -= 1
        idle -= 1 if units[unit_ids[r.first_unit + found]].holders == 0 else 0
    return found, idle, float(found * unit_tokens)


@compiled_inline
def append(u, units):
    """Put what nobody holds any more at the young end of the list.

    Args:
        u: a unit, or the record of a tail.
        units: the prefix cache.
    """
    ends = len(units) - 1
    newest = units[ends].older
    units[u].older, units[u].newer = newest, ends
    units[newest].newer, units[ends].older = u, u


@compiled
def hold(r, e, found, units, unit_ids):
    """Hold the leading units of a prompt, so that they are not evicted.

    Args:
        r: record of the request, which holds none yet.
        e: the books.
        found: how many.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    for k in range(found):
        wake_unit(unit_ids[r.first_unit + k], e, units)
    r.shared = found


@compiled_inline
def wake_unit(u, e, units):
    """Hold a unit that is cached, together with whoever does.

    Args:
        u: its id.
        e: the books.
        units: the prefix cache.
    """
    if units[u].holders == 0:
        unlink(u, units)
        units[u].left = 0
        e.idle_blocks -= e.unit_blocks
        e.free -= e.unit_blocks
    units[u].holders += 1


@compiled
def let_go(r, e, units, unit_ids):
    """Give up the units that a request holds; what nobody holds any more is idle, the deepest the longest.

    Args:
        r: record of the request.
        e: the books.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    for k in range(r.shared - 1, -1, -1):
        u = unit_ids[r.first_unit + k]
        units[u].holders -= 1
        if units[u].holders == 0:
            units[u].left = e.unit_blocks
            append(u, units)
            e.idle_blocks += e.unit_blocks
            e.free += e.unit_blocks
    r.shared = 0


@compiled
def leave_tail(i, r, e, units):
    """Leave the whole blocks after its units in the cache, idle; those of them that are full of computed tokens.

    Args:
        i: request id.
        r: its record; its blocks are given back after this.
        e: the books.
        units: the prefix cache.
    """
    tokens = r.computed if r.computed < r.goal else max(r.goal, r.prompt + r.emitted - 1.0)
    left = int(tokens // e.block_tokens) - r.shared * e.unit_blocks
    if left > 0:
        r.tail_at = r.shared
        units[e.tails + i].left = left
        append(e.tails + i, units)
        e.idle_blocks += left


@compiled
def take_tail(i, r, e, tail, units):
    """Take back the first blocks of the tail that a request left; the others are given up.

    Args:
        i: request id.
        r: its record.
        e: the books.
        tail: how many.
        units: the prefix cache.
    """
    u = e.tails + i
    unlink(u, units)
    e.idle_blocks -= units[u].left
    units[u].left = 0
    e.free -= tail
    r.blocks += tail


@compiled
def file_units(r, e, upto, units, unit_ids):
    """Put the prompt units that are computed after this step into the cache; one that is there is shared and its copy given back.

    Args:
        r: record of the request.
        e: the books.
        upto: tokens computed after this step [tokens].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    unit_tokens = e.unit_blocks * e.block_tokens
    while r.shared < r.units and (r.shared + 1) * unit_tokens <= upto:
        u = unit_ids[r.first_unit + r.shared]
        r.blocks -= e.unit_blocks
        r.shared += 1
        if units[u].cached != 0:
            e.free += e.unit_blocks
            wake_unit(u, e, units)
            continue
        if units[u].left > 0:  # what is left of it after an eviction is of no use any more
            unlink(u, units)
            e.idle_blocks -= units[u].left
            units[u].left = 0
        units[u].cached = 1
        units[u].holders += 1


@compiled
def evict(e, units):
    """Evict idle blocks, the longest idle first, until the blocks that were handed out are there.

    Args:
        e: the books; fewer blocks are free than are idle.
        units: the prefix cache.
    """
    ends = len(units) - 1
    while e.free < e.idle_blocks:
        u = units[ends].newer
        taken = min(e.idle_blocks - e.free, units[u].left)
        units[u].cached = 0
        units[u].left -= taken
        e.idle_blocks -= taken
        if units[u].left == 0:
            unlink(u, units)
