"""The language in which a synthetic workload is asked for: `arrivals:rate=...,prompt=...,output=...`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway import units
from headway.client_specs import CLIENT_NAMES, OF_CLASS, durations, with_clients
from headway.identification.readers.length_pairs import read as read_lengths
from headway.models.arrivals import Arrivals, Closed, Gamma, Poisson, Uniform, Weibull
from headway.models.generators import Synthetic
from headway.models.lengths import Constant, Geometric, Lengths, LogNormal, UniformLengths
from headway.models.varying import MMPP, Diurnal, Ramp, Step
from headway.models.workload import WorkloadSource
from headway.spec_forms import Form, items, made, member, wrong


def _rate(text: str) -> float:
    return units.rate_rps(text, bare=True)


def _several(read: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """Values with ; between them."""
    return lambda text: tuple(read(part.strip()) for part in text.split(";"))


def _state_rate(text: str) -> float:
    return units.rate_rps(text, bare=True, zero=True)


def _size(text: str) -> float:
    """A mean or median: tokens, but not necessarily whole."""
    return float(units.tokens(text)) if text.endswith(("k", "K", "M", "m")) else units.number(text)


RATE: dict[str, tuple[str, Callable[[str], Any]]] = {"rate": ("rate_rps", _rate)}
RISE = RATE | {"to": ("to_rps", _rate)}
LENGTHS_OF = "prompt=600,output=geometric(200)"
CLOSED = f"closed:clients=64,think=exponential(2s),{LENGTHS_OF}"

ARRIVALS: dict[str, Form[Arrivals]] = {
    "poisson": Form(Poisson, RATE, ("rate",)),
    "gamma": Form(Gamma, RATE | {"cv": ("cv", units.number)}, ("rate", "cv")),
    "uniform": Form(Uniform, RATE, ("rate",)),
    "weibull": Form(Weibull, RATE | {"shape": ("shape", units.number)}, ("rate", "shape"), f"weibull:rate=5/s,shape=0.6,{LENGTHS_OF}"),
    "mmpp": Form(
        MMPP,
        {"rates": ("rates_rps", _several(_state_rate)), "dwell": ("dwells_s", _several(units.duration_s))},
        ("rates", "dwell"),
        f"mmpp:rates=2/s;20/s,dwell=30s;5s,{LENGTHS_OF}",
    ),
    "diurnal": Form(
        Diurnal,
        RATE | {"amplitude": ("amplitude", units.number), "period": ("period_s", units.duration_s), "phase": ("phase", units.number)},
        ("rate", "amplitude", "period"),
        f"diurnal:rate=8/s,amplitude=0.6,period=1h,{LENGTHS_OF}",
    ),
    "step": Form(
        Step,
        RISE | {"at": ("at_s", units.duration_s), "until": ("until_s", units.duration_s)},
        ("rate", "to", "at"),
        f"step:rate=4/s,to=12/s,at=60s,{LENGTHS_OF}",
    ),
    "ramp": Form(
        Ramp,
        RISE | {"over": ("over_s", units.duration_s), "at": ("at_s", units.duration_s)},
        ("rate", "to", "over"),
        f"ramp:rate=4/s,to=12/s,over=2min,{LENGTHS_OF}",
    ),
    "closed": Form(
        Closed,
        {"clients": ("clients", units.whole), "think": ("think", lambda text: durations(f"think={text}", text, CLOSED))},
        ("clients",),
        CLOSED,
    ),
}
"""Processes of arrivals by name."""

BOUNDS: dict[str, tuple[str, Callable[[str], Any]]] = {"min": ("low", units.tokens), "max": ("high", units.tokens)}

LENGTHS: dict[str, Form[Lengths]] = {
    "lognormal": Form(LogNormal, {"median": ("median", _size), "sigma": ("sigma", units.number), **BOUNDS}, ("median", "sigma")),
    "uniform": Form(UniformLengths, BOUNDS, ("min", "max")),
    "geometric": Form(Geometric, {"mean": ("mean", _size)}, ("mean",)),
    "constant": Form(Constant, {"value": ("value", units.tokens)}, ("value",)),
}
"""Distributions of lengths by name."""


def synthetic(
    text: str, *, rate_rps: float | None = None, classes: Sequence[str] = ("default",), shares: Sequence[float] = (1.0,)
) -> Synthetic:
    """The source that a spec describes in which nothing but arrivals and lengths is said.

    Args:
        text: `arrivals:name=value,...` with the parameters of the arrivals, `prompt` and `output`, and for a class that
            differs `prompt.NAME` and `output.NAME`.
        rate_rps: in place of the rate in the text [requests/s]; None takes that.
        classes: names of the classes.
        shares: part of the requests in each class, shape (classes,); sums to 1.

    Returns:
        A checked source, whose `source` is the text.

    Raises:
        ValueError: anything in the text that is not understood, or a spec that takes lengths from a file or speaks of clients.

    Example:
        >>> synthetic("gamma:rate=5/s,cv=4,prompt=uniform(16,512),output=64").arrivals
        Gamma(rate_rps=5.0, cv=4.0)
    """
    source, _ = drawn(text, rate_rps=rate_rps, classes=classes, shares=shares)
    if not isinstance(source, Synthetic):
        raise wrong(text, f"only arrivals, prompt and output are taken here; leave out lengths, {', '.join(CLIENT_NAMES)}")
    return source


def drawn(
    text: str, *, rate_rps: float | None = None, classes: Sequence[str] = ("default",), shares: Sequence[float] = (1.0,)
) -> tuple[WorkloadSource, list[str]]:
    """The source that a spec describes, with notes.

    Args:
        text: `arrivals:name=value,...` with the parameters of the arrivals, `prompt` and `output` or `lengths=FILE`, and what
            there is to say of the clients, `headway.client_specs.CLIENT_NAMES`; for a class that differs `prompt.NAME` and so on.
        rate_rps: in place of the rate in the text [requests/s]; None takes that.
        classes: names of the classes.
        shares: part of the requests in each class, shape (classes,); sums to 1.

    Returns:
        A checked source, whose `source` is the text, and a sentence each on what was set aside in a file of lengths.

    Raises:
        ValueError: anything in the text that is not understood: what, where, what was expected, an example.

    Example:
        >>> source, _ = drawn("closed:clients=2,think=1s,prompt=64,output=32")
        >>> source.draw(0, 4, heldout=False).after
        array([-1, -1,  0,  1])
    """
    kind, _, rest = text.partition(":")
    kind = kind.strip()
    if kind not in ARRIVALS:
        raise wrong(text, f"unknown arrivals {kind!r}; {units.nearest(kind, ARRIVALS)}")
    form = ARRIVALS[kind]
    if not rest.strip():
        raise wrong(text, f"{kind} needs {', '.join(form.needed)}, prompt and output", form.example)
    given = items(rest)
    _refuse_unknown(given, form, classes)
    timing = {name: value for name, value in given.items() if name in form.reads}
    source = text.strip() if rate_rps is None else f"{text.strip()} at {rate_rps:g}/s"
    arrivals = _arrivals(kind, form, timing, rate_rps)
    if "lengths" in given:
        made_of, notes = _recorded(given, arrivals, shares, source)
    else:
        prompt, output = (tuple(_lengths(text, given, what, one, form.example) for one in classes) for what in ("prompt", "output"))
        made_of, notes = Synthetic(arrivals, prompt, output, tuple(shares), source), []
        made_of.check()
    clients = {name: value for name, value in given.items() if name.partition(".")[0] in CLIENT_NAMES}
    return with_clients(made_of, clients, classes, source), notes


def _refuse_unknown(given: Mapping[str, str], form: Form[Arrivals], classes: Sequence[str]) -> None:
    """Name what no part of a spec knows."""
    known, of_class = (*form.reads, "prompt", "output", "lengths", *CLIENT_NAMES), ("prompt", "output", *OF_CLASS)
    for name, value in given.items():
        what, dot, one = name.partition(".")
        if what not in known or (dot and what not in of_class):
            raise wrong(f"{name}={value}", f"unknown name {name!r}; {units.nearest(name, known)}", form.example)
        if dot and one not in classes:
            raise wrong(f"{name}={value}", f"unknown class {one!r}; {units.nearest(one, classes)}", form.example)


def _arrivals(kind: str, form: Form[Arrivals], timing: dict[str, str], rate_rps: float | None) -> Arrivals:
    """Arrivals at their own rate or at the one given: a process of several rates keeps their proportion."""
    if rate_rps is not None and "rate" in form.reads and "rate" not in timing:
        timing["rate"] = f"{float(rate_rps)!r}/s"
    where = f"{kind}:{','.join(f'{name}={value}' for name, value in timing.items())}"
    arrivals = made(where, kind, form, timing)
    try:
        return arrivals if rate_rps is None else arrivals.rescaled(rate_rps)
    except ValueError as error:
        raise wrong(where, str(error), form.example) from error


def _recorded(given: Mapping[str, str], arrivals: Arrivals, shares: Sequence[float], source: str) -> tuple[WorkloadSource, list[str]]:
    """Recorded pairs of lengths, sent by these arrivals."""
    for name, value in given.items():
        if name.partition(".")[0] in ("prompt", "output"):
            raise wrong(f"{name}={value}", "lengths=FILE holds prompts and outputs; leave prompt and output out, or lengths")
    pairs, notes = read_lengths(Path(given["lengths"]), 1.0, shares)
    # The reader's own first word is on the arrivals that it would have drawn.
    return dataclasses.replace(pairs, arrivals=arrivals, source=source), notes[1:]


def _lengths(text: str, given: Mapping[str, str], what: str, one: str, example: str) -> Lengths:
    """The lengths of one class: its own if it has some, else those of all."""
    key = f"{what}.{one}" if f"{what}.{one}" in given else what
    if key not in given:
        every = f"{what}=..." if one == "default" else f"{what}=... for all or {what}.{one}=..."
        raise wrong(text, f"no {what} lengths{'' if one == 'default' else f' for class {one!r}'}; add {every}", example)
    return member(f"{key}={given[key]}", given[key], LENGTHS, "a number of tokens", "lengths")
