"""What the fluid of the scheduler is made of: its knobs, its requests, what is done of them, and what passes from slot to slot."""

from __future__ import annotations

from typing import Any, NamedTuple

from headway.controllers.fluid.budget import Make
from headway.controllers.fluid.noise import StepNoise
from headway.models.plant import Plant
from headway.models.pytree import pytree


@pytree
class Knobs:
    """The numbers of the scheduler in one slot. Each may be constant or follow the load.

    Args:
        margin: share of the step budget kept free.
        aging_rate: seconds of slack that one second of waiting is worth [s/s].
        chunk_tokens: most prompt tokens of one request in a step [tokens].
        trim: integral gain of the law; what it costs is that it answers noise.
        share: prompt tokens due to class 0, as a share of all, in [0, 1].
        boost: seconds of slack that a deficit of a thousand tokens is worth; 0 for no shares [s].
        tolerance: negative slack tolerated, as a share of the TTFT target.
        estimate: factor on the estimated time to completion.
        timeout: share of the TTFT target after which "timeout" sheds.
        running_limit: most requests running at once [requests].
        most_tokens: upper limit of the law's prefill budget [tokens].
        least_tokens: lower limit of it; `most_tokens` goes before it [tokens].
        price_s: slack that the cache of one prompt token is worth [s].
    """

    margin: Any = 0.15
    aging_rate: Any = 0.0
    chunk_tokens: Any = 512.0
    trim: Any = 0.0
    share: Any = 0.5
    boost: Any = 0.0
    tolerance: Any = 0.0
    estimate: Any = 1.0
    timeout: Any = 1.0
    running_limit: Any = 256.0
    most_tokens: Any = 1e6
    least_tokens: Any = 0.0
    price_s: Any = 0.0


class Seen(NamedTuple):
    """The load, as a schedule of knobs sees it.

    Args:
        queued_tokens: prompt tokens still to be computed, of all who were not shed [tokens].
        running_requests: requests that decode [requests].
        kv_share: of the cache in use, in [0, 1].
    """

    queued_tokens: Any
    running_requests: Any
    kv_share: Any


class Rows(NamedTuple):
    """Live requests of a segment, shapes (rows,).

    Args:
        arrival_s: [s].
        prompt: [tokens].
        output: [tokens].
        class_id: index into the targets.
        ttft_s: target at the engine [s].
    """

    arrival_s: Any
    prompt: Any
    output: Any
    class_id: Any
    ttft_s: Any


class Masses(NamedTuple):
    """What is done of each request, shapes (rows,).

    Args:
        progress: share of the prompt computed, in [0, 1].
        emitted: [tokens].
        in_time: share of the request whose first token came in time, in [0, 1].
        begun: share that has its place in the cache, in [0, 1]; followed where admission or triage ask for it.
    """

    progress: Any
    emitted: Any
    in_time: Any
    begun: Any


class Flow(NamedTuple):
    """What passes from slot to slot beside the requests. Scalars, but for the two sums per class.

    Args:
        deficit: of class 0 [thousand tokens].
        step_s: mean step of the last slot [s].
        threshold_s: of the last slot [s].
        gate_s: of the last slot [s].
        make: of the last slot's prompt part.
        good: tokens on time so far [tokens].
        owed_more: tokens owed beyond those emitted so far [tokens].
        served: prompt tokens so far [tokens].
        excess: largest share by which prompt tokens exceeded the budget of a slot.
    """

    deficit: Any
    step_s: Any
    threshold_s: Any
    gate_s: Any
    make: Make
    good: Any
    owed_more: Any
    served: Any
    excess: Any


class Setting(NamedTuple):
    """What holds during a whole run.

    Args:
        plant: the plant.
        decode: noise of steps without prompts.
        mixed: noise of steps with prompts.
        itl_s: distinct step budgets of the classes, ITL less transport, and the place of each class in them [s].
        budget_s: least step budget of all classes [s].
        pool_tokens: of the cache [tokens].
        watermark: share of it kept free for who runs.
        block_tokens: size of a block [tokens].
        max_tokens: most tokens of a step [tokens].
        max_seqs: most requests that the engine runs [requests].
    """

    plant: Plant
    decode: StepNoise
    mixed: StepNoise
    itl_s: tuple[tuple[float, ...], tuple[int, ...]]
    budget_s: float
    pool_tokens: float
    watermark: float
    block_tokens: float
    max_tokens: float
    max_seqs: float


class Now(NamedTuple):
    """What follows from the state at the beginning of a slot.

    Args:
        time_s: beginning of the slot [s].
        arrived: share of the slot after each arrival, in [0, 1].
        left: prompt tokens to compute [tokens].
        done: share of each request whose prompt is complete.
        decoding: share of each request that decodes.
        requests: sum of decoding.
        kv_tokens: that they read [tokens].
        used: cache tokens in use [tokens].
        running: requests that have a place.
        waiting: share of each request that is computed and waits for the rest of it to be let in.
    """

    time_s: Any
    arrived: Any
    left: Any
    done: Any
    decoding: Any
    requests: Any
    kv_tokens: Any
    used: Any
    running: Any
    waiting: Any
