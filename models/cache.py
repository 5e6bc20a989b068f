"""The prefix cache: prompts that begin alike share the blocks of their leading units, and units stay until blocks run out.

Units that nobody holds count as free blocks and wait, by age, in a list through their own records: nothing is searched.
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
        u = unit_ids[r.first_unit + k]
        if units[u].holders == 0:
            unlink(u, units)
            e.n_idle -= 1
            e.free -= e.unit_blocks
        units[u].holders += 1
    r.shared = found


@compiled
def let_go(r, e, units, unit_ids):
    """Give up the units that a request holds; what nobody holds any more is idle, the deepest the longest.

    Args:
        r: record of the request.
        e: the books.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    ends = len(units) - 1
    for k in range(r.shared - 1, -1, -1):
        u = unit_ids[r.first_unit + k]
        units[u].holders -= 1
        if units[u].holders == 0:
            newest = units[ends].older
            units[u].older, units[u].newer = newest, ends
            units[newest].newer, units[ends].older = u, u
            e.n_idle += 1
            e.free += e.unit_blocks
    r.shared = 0


@compiled
def file_units(r, e, block, units, unit_ids):
    """Put the prompt units that are computed now into the cache; one that is there already is shared and its copy given back.

    Args:
        r: record of the request.
        e: the books.
        block: tokens in a cache block [tokens].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    unit_tokens = e.unit_blocks * block
    while r.shared < r.units and (r.shared + 1) * unit_tokens <= r.computed:
        u = unit_ids[r.first_unit + r.shared]
        r.blocks -= e.unit_blocks
        if units[u].cached != 0:
            e.free += e.unit_blocks
            if units[u].holders == 0:
                unlink(u, units)
                e.n_idle -= 1
                e.free -= e.unit_blocks
        units[u].cached = 1
        units[u].holders += 1
        r.shared += 1


@compiled
def evict(e, units):
    """Evict idle units, the longest idle first, until the blocks that were handed out are there.

    Args:
        e: the books; fewer blocks are free than idle units hold.
        units: the prefix cache.
    """
    ends = len(units) - 1
    while e.free < e.n_idle * e.unit_blocks:
        u = units[ends].newer
        unlink(u, units)
        units[u].cached = 0
        e.n_idle -= 1
