"""Polling levels: how many nodes poll each channel, so that changes are found soon and web servers are spared.

At level l, N / b^l nodes poll a channel, evenly spaced: at level 0 all N do, at the highest, K = ceil(log_b N), its
owner alone. With n pollers every tau seconds a change is found after tau / (2 n) on average, at a load of n times the
channel's size per interval. The schemes of the document are one problem over integer levels, min sum f s.t. sum g <= T:

* Lite: f = q / n, g = s n, and T = sum q s, the load that q subscribers would cause if each polled on its own. Where
  sizes are all 1, that is the document's sum q.
* Fast: f = s n, g = q / n, and T = sum q target / (tau / 2): least load for a mean detection time.
* Fair, Fair-Sqrt, Fair-Log: as Lite, with q divided by the update interval u, its root, or its logarithm. The poll
  interval above u in the document's ratios is the same for all channels, so that it divides out.

f g is the same at every level of a channel, so a channel's next step is worth q / (s n n') of f for a unit of g, and
levels are thresholds on q / s: sort the channels, find where the budget ends, O(M log M + K log M). What is left
goes to what still fits. The linear problem's optimum bounds what anybody could reach. Few channels are solved exactly.

A channel without subscribers is not polled: it has the highest level, no pollers, and counts in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from clarion.model.errors import BadSettings, PermanentError

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.int8]
Counts = npt.NDArray[np.intp]

_ROUNDING = 1e-12  # of a budget: sums of the same numbers in another order differ by as much
_EXACT_CHANNELS = 4_000  # few enough for the best levels to be searched
_EXACT_ANSWERS = 500_000  # partial ones that are looked at in such a search; then it is given up
_FILL_STEPS = 256  # a level, beyond the threshold, that are tried for what is left of the budget


class Scheme(StrEnum):
    """What is minimised: detection time within the load of subscribers (Lite; Fair, weighted by how often a channel
    changes), or load within a detection time (Fast)."""

    LITE = "lite"
    FAST = "fast"
    FAIR = "fair"
    FAIR_SQRT = "fair-sqrt"
    FAIR_LOG = "fair-log"


class Channels(NamedTuple):
    """What is known of channels, an array each."""

    subscribers: Floats  # q
    size: Floats  # s, in any unit: a plan tells loads in mean sizes
    update_interval_s: Floats  # u; infinite where a channel never changed. Only the Fair schemes look at it


class LevelPlan(NamedTuple):
    """A level for each channel, and what follows. Loads are per watched channel and poll interval."""

    levels: Levels
    pollers: Floats  # of each channel: the mean size of its wedge, 0 without subscribers
    polls: float
    bandwidth: float  # in mean sizes
    budget: float  # bandwidth of subscribers that poll on their own; of owners alone, where that is more
    detection_s_by_subscription: float  # means; 0 where nobody subscribes to anything
    detection_s_by_channel: float
    bound: float  # of the sum that is minimised: the linear problem's optimum
    gap_to_bound: float  # how much more that sum is, in parts of the bound
    channels_by_level: tuple[int, ...]  # of watched ones
    watched: int
    mean_size: float  # of watched ones, in the unit of `Channels.size`
    exact: bool  # nothing is better


def wedge_sizes(nodes: int, base: int) -> Floats:
    """Return how many nodes poll a channel at each level, on average: N / b^l, and 1 at the highest."""
    if nodes < 1 or base < 2:
        raise BadSettings(f"a ring has at least 1 node and a base of 2 or more, not {nodes} and {base}")
    sizes = [float(nodes)]
    while sizes[-1] > 1:
        sizes.append(max(1.0, sizes[-1] / base))
    return np.array(sizes)


def choose_levels(
    channels: Channels,
    nodes: int,
    base: int,
    poll_interval_s: float,
    scheme: Scheme = Scheme.LITE,
    target_s: float | None = None,
) -> LevelPlan:
    """Return the best levels that were found for all channels; BadSettings where none meet Fast's target."""
    sizes = wedge_sizes(nodes, base)
    _check(channels, scheme)
    watched, some = channels.subscribers > 0, _watched(channels)
    sums = _Sums(float(some.subscribers.sum()), float(some.size.sum()), _dot(some.subscribers, some.size))
    problem = _problem_of(sums, sizes, poll_interval_s, scheme, target_s)
    found = _solve(*_value_and_price(scheme, some.subscribers, _worth(some, scheme), some.size), problem)
    levels = np.full(len(channels.subscribers), len(sizes) - 1, dtype=np.int8)
    levels[watched] = problem.levels[found.steps]
    return describe(channels, levels, sizes, poll_interval_s, scheme, found.bound, exact=found.exact)


def describe(
    channels: Channels,
    levels: Levels,
    sizes: Floats,
    poll_interval_s: float,
    scheme: Scheme = Scheme.LITE,
    bound: float = math.nan,
    *,
    exact: bool = False,
) -> LevelPlan:
    """Return what follows from levels, however they were chosen; `bound` is that of the best plan, where known."""
    q, size = channels.subscribers, channels.size
    watched = q > 0
    count = int(watched.sum())
    pollers = np.where(watched, sizes[levels], 0.0)
    mean_size = float(size[watched].mean()) if count else 0.0
    late = np.divide(poll_interval_s / 2, pollers, out=np.zeros_like(pollers), where=watched)
    each = max(count, 1)
    load_unit = each * (mean_size or 1.0)
    if scheme is Scheme.FAST:
        minimised = _dot(size, pollers)
    else:
        minimised = _dot(_worth(channels, scheme), late) / (poll_interval_s / 2)
    return LevelPlan(
        levels=levels,
        pollers=pollers,
        polls=float(pollers.sum()) / each,
        bandwidth=_dot(pollers, size) / load_unit,
        budget=max(_dot(q, size), float(size[watched].sum())) / load_unit,
        detection_s_by_subscription=_dot(q, late) / (float(q.sum()) or 1.0),
        detection_s_by_channel=float(late.sum()) / each,
        bound=bound,
        gap_to_bound=float(np.maximum(0.0, minimised / bound - 1)) if bound else 0.0,
        channels_by_level=tuple(np.bincount(levels[watched], minlength=len(sizes)).tolist()),
        watched=count,
        mean_size=mean_size,
        exact=exact,
    )


def _dot(one: Floats, other: Floats) -> float:
    """Return the sum of products, by one thread: a BLAS has several, which wait for each other on a busy machine, and
    whose number shows in the last digits of a sum, while all nodes are to come to the same."""
    return float((one * other).sum())


def _check(channels: Channels, scheme: Scheme) -> None:
    """Raise BadSettings where a channel has no usable numbers for a scheme."""
    if len({len(column) for column in channels}) != 1:
        raise BadSettings("subscribers, sizes and update intervals are of different numbers of channels")
    q, size, u = channels
    _want(np.isfinite(q) & (q >= 0), "subscribers", q, "0 or more")
    _want(np.isfinite(size) & (size > 0), "size", size, "more than 0")
    if scheme in (Scheme.FAIR, Scheme.FAIR_SQRT):
        _want(u > 0, "update_interval_s", u, "more than 0")
    if scheme is Scheme.FAIR_LOG:
        _want(u > 1, "update_interval_s", u, "for fair-log more than 1")


def _want(right: npt.NDArray[np.bool_], name: str, values: Floats, wanted: str) -> None:
    if not right.all():
        at = int(right.argmin())
        raise BadSettings(f"{name} of channel {at + 1} is {values[at]:g}, and should be {wanted}; nothing was planned")


def _worth(channels: Channels, scheme: Scheme) -> Floats:
    """Return what a short detection time is worth for each channel: q, weighted by how often it changes."""
    q, u = channels.subscribers, channels.update_interval_s
    if scheme is Scheme.FAIR:
        return q / u
    if scheme is Scheme.FAIR_SQRT:
        return q / np.sqrt(u)
    if scheme is Scheme.FAIR_LOG:
        return q / np.log(u)
    return q


class _Sums(NamedTuple):
    """What the budget of all channels follows from."""

    subscribers: float
    size: float  # of watched channels
    load: float  # of subscribers on their own: sum q s


def _value_and_price(scheme: Scheme, subscribers: Floats, worth: Floats, size: Floats) -> tuple[Floats, Floats]:
    return (size, subscribers) if scheme is Scheme.FAST else (worth, size)


class _Problem(NamedTuple):
    """Minimise sum value / size s.t. sum price size <= budget, over `sizes` that ascend: a step is to the next one."""

    sizes: Floats
    levels: Levels  # what each size is called
    budget: float


def _problem_of(
    sums: _Sums, sizes: Floats, poll_interval_s: float, scheme: Scheme, target_s: float | None = None
) -> _Problem:
    """Return what is to be solved. For Fast, "sizes" are inverse, price is q and value is s: all steps are the other
    way round, from everybody to the owner alone. A channel that is watched is polled by its owner at least."""
    if not 0 < poll_interval_s < math.inf:
        raise BadSettings(f"a poll interval is more than 0 s, not {poll_interval_s}")
    levels = np.arange(len(sizes), dtype=np.int8)
    if scheme is not Scheme.FAST:
        if target_s is not None:
            raise BadSettings(f"a target is for {Scheme.FAST}; {scheme} finds changes as soon as its load allows")
        return _Problem(sizes[::-1].copy(), levels[::-1], max(sums.load, sums.size))
    if target_s is None or not 0 < target_s < math.inf:
        raise BadSettings(f"{Scheme.FAST} needs a target of more than 0 s for the mean detection time")
    quickest_s = poll_interval_s / 2 / float(sizes[0])
    if target_s < quickest_s * (1 - _ROUNDING):
        raise BadSettings(
            f"changes are found after {quickest_s:g} s where all {sizes[0]:g} nodes poll everything, not after"
            f" {target_s:g} s; take more nodes, a shorter poll interval or another target. Nothing was planned"
        )
    return _Problem(1 / sizes, levels, max(target_s, quickest_s) / (poll_interval_s / 2) * sums.subscribers)


class _Solution(NamedTuple):
    """Which of the ascending sizes each channel has, and how good that is."""

    steps: Counts
    bound: float
    exact: bool


def _solve(value: Floats, price: Floats, problem: _Problem) -> _Solution:
    """Return sizes that are within the budget, and near the best: the best for a few channels."""
    if not len(value):
        return _Solution(np.zeros(0, np.intp), 0.0, True)
    taken = _take_steps(value, price, problem)
    best = _cost_of(value, 1 / problem.sizes, taken.steps)
    steps, exact = taken.steps, best <= taken.bound * (1 + _ROUNDING)
    if not exact and len(value) <= _EXACT_CHANNELS:
        searched = _search(value, price, problem, taken.multiplier, best)
        if searched is not None:
            steps, exact = searched, True
    return _Solution(steps, taken.bound, bool(exact))


def _cost_of(each: Floats, sizes: Floats, steps: Counts) -> float:
    return _dot(each, sizes[steps])


class _Taken(NamedTuple):
    steps: Counts
    bound: float  # the linear problem's optimum
    multiplier: float  # what a unit of the budget is worth there
    split: tuple[int, int, float] | None  # a cluster, its step that some of its channels take, and the room for them


def _take_steps(value: Floats, price: Floats, problem: _Problem, members: Counts | None = None) -> _Taken:
    """Return the steps that are worth most for their price, in order, until the budget ends, and then what fits. Where
    `members` says of how many channels each is the sum, the first of several that does not fit is split."""
    sizes = problem.sizes
    last = len(sizes) - 1
    widths, products = np.diff(sizes), sizes[:-1] * sizes[1:]
    ratio = value / price
    order = np.argsort(-ratio, kind="stable")
    negated = -ratio[order]  # so that they ascend, as searchsorted wants it
    paid = np.concatenate(([0.0], np.cumsum(price[order])))
    room = problem.budget * (1 + _ROUNDING) - sizes[0] * paid[-1]

    def counts_above(multiplier: float) -> Counts:
        """How many channels take each step where only steps worth more than that are taken."""
        return np.searchsorted(negated, -multiplier * products, side="left")

    low, high = 0, int(np.float64(2 * ratio[order[0]] / products[0]).view(np.int64)) if last else 0
    if last and _dot(widths, paid[counts_above(0.0)]) > room:
        while high - low > 1:  # over the bits of a float: positive ones are in the order of their bits
            middle = (low + high) // 2
            fits = _dot(widths, paid[counts_above(_float_of(middle))]) <= room
            low, high = (low, middle) if fits else (middle, high)
    else:
        high = 0
    multiplier = _float_of(high)
    counts = counts_above(multiplier)
    room -= _dot(widths, paid[counts])
    saved = np.concatenate(([0.0], np.cumsum(value[order])))
    bound = float(saved[-1] / sizes[0]) - _dot(widths / products, saved[counts]) - multiplier * max(0.0, float(room))
    if high:
        ties = counts_above(_float_of(low))
        for step in range(last):  # as many of those that are worth the same as fit
            end = int(np.searchsorted(paid, paid[counts[step]] + room / widths[step], side="right")) - 1
            end = max(int(counts[step]), min(end, int(ties[step])))
            room -= float(widths[step] * (paid[end] - paid[counts[step]]))
            counts[step] = end
    ranked = np.zeros(len(value), dtype=np.intp)
    for count in counts:
        ranked[:count] += 1
    split = None
    if high:
        alone = np.ones(len(value), dtype=bool) if members is None else members[order] == 1
        split = _fill(ranked, counts, -negated, price[order], alone, widths, products, room)
    steps = np.empty_like(ranked)
    steps[order] = ranked
    return _Taken(steps, bound, multiplier, split and (int(order[split[0]]), *split[1:]))


def _float_of(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


def _fill(
    ranked: Counts,
    counts: Counts,
    ratio: Floats,
    price: Floats,
    alone: npt.NDArray[np.bool_],
    widths: Floats,
    products: Floats,
    room: float,
) -> tuple[int, int, float] | None:
    """Take further steps, those worth most first, where they fit into what is left; the first that does not, and can be
    split, gets the rest."""
    next_ones = [
        (-float(ratio[at] / products[step]), step, at)
        for step, count in enumerate(counts.tolist())
        for at in range(count, min(count + _FILL_STEPS, len(ratio)))
        if ratio[at] > 0
    ]
    for _, step, at in sorted(next_ones):
        cost = float(price[at] * widths[step])
        if ranked[at] == step and cost <= room:
            ranked[at] += 1
            room -= cost
        elif ranked[at] == step and not alone[at]:
            return at, step, room
    return None


def _search(value: Floats, price: Floats, problem: _Problem, multiplier: float, best: float) -> Counts | None:
    """Return the best steps there are, or None where too many would have to be looked at.

    A step is settled where, by the Lagrangian bound, no answer with another could be as good as `best`. The other
    channels are gone through one by one: of partial answers those are kept that no other beats in both sums, and that
    can still be as good.
    """
    sizes = problem.sizes
    f, g = value[:, None] / sizes, price[:, None] * sizes
    charged = f + multiplier * g
    extra = charged - charged.min(axis=1, keepdims=True)
    budget = problem.budget * (1 + _ROUNDING)
    spare = best * (1 + _ROUNDING) + multiplier * budget - float(charged.min(axis=1).sum())
    steps: Counts = extra.argmin(axis=1)
    doubt = np.sort(extra, axis=1)[:, 1]
    unsure = np.flatnonzero(doubt <= spare)
    unsure = unsure[np.argsort(-doubt[unsure], kind="stable")]  # the clearest first, so that few answers are kept
    settled = np.ones(len(value), dtype=bool)
    settled[unsure] = False
    sum_g = np.array([g[settled, steps[settled]].sum()])
    sum_f, sum_extra = np.zeros(1), np.zeros(1)
    later_g = float(g[unsure, 0].sum())
    trail: list[tuple[Counts, Counts]] = []
    looked_at = 0
    for channel in unsure:
        later_g -= float(g[channel, 0])
        all_f, all_g, all_extra = (
            (sums[:, None] + each[channel]).ravel() for sums, each in ((sum_f, f), (sum_g, g), (sum_extra, extra))
        )
        looked_at += len(all_f)
        kept = np.flatnonzero((all_extra <= spare) & (all_g + later_g <= budget))
        kept = kept[np.lexsort((all_f[kept], all_g[kept]))]
        least_before = np.minimum.accumulate(np.concatenate(([np.inf], all_f[kept])))[:-1]
        kept = kept[all_f[kept] < least_before * (1 - _ROUNDING)]
        if not len(kept) or looked_at > _EXACT_ANSWERS:
            return None
        sum_f, sum_g, sum_extra = all_f[kept], all_g[kept], all_extra[kept]
        trail.append((kept // len(sizes), kept % len(sizes)))
    at = int(sum_f.argmin())
    if sum_g[at] > budget:  # nothing was in doubt but for rounding
        return None
    for channel, (parents, taken) in zip(unsure[::-1], trail[::-1], strict=True):
        steps[channel] = taken[at]
        at = int(parents[at])
    return steps


# Deciding alone: what nodes tell each other, so that each finds the same thresholds.

_BINS_PER_OCTAVE = 32  # of worth for a unit of size
_MOST_BINS = 2048  # on either side of 1: 64 octaves
_MOST_TOLD = 1e30  # of any sum of all channels: what is beyond is no number of the web's


class Cluster(msgspec.Struct, frozen=True, array_like=True):
    """Channels for which a step is worth about as much: their number and sums. f and g at each level follow."""

    bin: Annotated[int, msgspec.Meta(ge=-_MOST_BINS, le=_MOST_BINS)]
    channels: Annotated[int, msgspec.Meta(ge=1, le=2**48)]
    subscribers: Annotated[float, msgspec.Meta(gt=0, le=_MOST_TOLD)]
    worth: Annotated[float, msgspec.Meta(ge=0, le=_MOST_TOLD)]
    size: Annotated[float, msgspec.Meta(gt=0, le=_MOST_TOLD)]


class Clusters(msgspec.Struct, frozen=True):
    """What one node's watched channels, or those of several, come to. At most 4,097 clusters, by their bin."""

    scheme: Scheme
    load: Annotated[float, msgspec.Meta(ge=0, le=_MOST_TOLD**2)] = 0.0  # of subscribers on their own: sum q s
    clusters: Annotated[tuple[Cluster, ...], msgspec.Meta(max_length=2 * _MOST_BINS + 1)] = ()

    def encode(self) -> bytes:
        """Return it as it travels: JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Clusters:
        """Return what a node told; PermanentError where these are no clusters."""
        try:
            found = _clusters.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PermanentError(f"these are no trade-off clusters: {error}") from error
        bins = [one.bin for one in found.clusters]
        if bins != sorted(set(bins)):
            raise PermanentError("these trade-off clusters are not in the order of their bins")
        return found


_clusters = msgspec.json.Decoder(Clusters)


def clusters_of(channels: Channels, scheme: Scheme = Scheme.LITE) -> Clusters:
    """Return the clusters of a node's own channels; those without subscribers are left out."""
    _check(channels, scheme)
    some = _watched(channels)
    worth = _worth(some, scheme)
    bins, place, counts = np.unique(_bins(worth, some.size), return_inverse=True, return_counts=True)
    sums = [np.bincount(place, each, len(bins)).tolist() for each in (some.subscribers, worth, some.size)]
    made = map(Cluster, bins.tolist(), counts.tolist(), *sums)
    return Clusters(scheme, _dot(some.subscribers, some.size), tuple(made))


def merge(parts: Iterable[Clusters]) -> Clusters:
    """Return the clusters of several nodes together, the same in whatever order they come."""
    parts = list(parts)
    schemes = {part.scheme for part in parts}
    if len(schemes) != 1:
        raise BadSettings(f"clusters of one scheme can be merged, not of {sorted(schemes)}")
    by_bin: dict[int, list[Cluster]] = {}
    for part in parts:
        for one in part.clusters:
            by_bin.setdefault(one.bin, []).append(one)
    made = (
        Cluster(
            at,
            sum(one.channels for one in found),
            math.fsum(one.subscribers for one in found),
            math.fsum(one.worth for one in found),
            math.fsum(one.size for one in found),
        )
        for at, found in sorted(by_bin.items())
    )
    return Clusters(schemes.pop(), math.fsum(part.load for part in parts), tuple(made))


def decide_alone(
    own: Channels,
    of_all: Clusters,
    nodes: int,
    base: int,
    poll_interval_s: float,
    scheme: Scheme = Scheme.LITE,
    target_s: float | None = None,
    before: Clusters | None = None,
) -> Levels:
    """Return levels for a node's own channels, from what all channels come to, its own among them.

    Nodes that know the same clusters keep the budget together. Of one cluster only some channels can have a level less:
    those of the first nodes where `before` has what the nodes come to that are before this one in an order on which all
    agree; without it, a part of each node's that is rounded down.
    """
    if of_all.scheme is not scheme:
        raise BadSettings(f"levels by {scheme} do not follow from clusters of {of_all.scheme}; nothing was decided")
    sizes = wedge_sizes(nodes, base)
    _check(own, scheme)
    levels = np.full(len(own.subscribers), len(sizes) - 1, dtype=np.int8)
    watched, some = own.subscribers > 0, _watched(own)
    if not of_all.clusters or not len(some.subscribers):
        return levels
    worth = _worth(some, scheme)
    table = np.array([msgspec.structs.astuple(one) for one in of_all.clusters])
    bins, members, sums = table[:, 0].astype(np.int64), table[:, 1].astype(np.intp), table[:, 2:].T
    total = _Sums(float(sums[0].sum()), float(sums[2].sum()), of_all.load)
    problem = _problem_of(total, sizes, poll_interval_s, scheme, target_s)
    taken = _take_clusters(*_value_and_price(scheme, *sums), problem, members)
    mine = _bins(worth, some.size)
    nearest = np.maximum(np.searchsorted(bins, mine, side="right") - 1, 0)  # where a bin was not told of yet
    steps = taken.steps[nearest]
    if taken.split is not None:
        cluster, step, room = taken.split
        line = np.flatnonzero(mine == bins[cluster])
        ends = np.cumsum(_value_and_price(scheme, some.subscribers, worth, some.size)[1][line])
        width = float(problem.sizes[step + 1] - problem.sizes[step])
        if before is not None:
            ends += _price_in(before, int(bins[cluster]))
        elif len(line):
            room *= float(ends[-1]) / _price_in(of_all, int(bins[cluster]))
        steps[line[ends * width <= room]] += 1
    levels[watched] = problem.levels[steps]
    return levels


def _take_clusters(value: Floats, price: Floats, problem: _Problem, members: Counts) -> _Taken:
    """Return the better of two answers: the best in which no cluster is split, where they are few, and one that is."""
    taken = _take_steps(value, price, problem, members)
    if len(value) > _EXACT_CHANNELS:
        return taken
    whole = _solve(value, price, problem).steps
    saved = 0.0
    if taken.split is not None:
        at, step, room = taken.split
        each = float(price[at] / members[at] * (problem.sizes[step + 1] - problem.sizes[step]))
        gain = float(value[at] / members[at] * (1 / problem.sizes[step] - 1 / problem.sizes[step + 1]))
        saved = room // each * gain
    inverse = 1 / problem.sizes
    if _cost_of(value, inverse, whole) < _cost_of(value, inverse, taken.steps) - saved:
        return taken._replace(steps=whole, split=None)
    return taken


def _price_in(clusters: Clusters, at: int) -> float:
    found = (one for one in clusters.clusters if one.bin == at)
    return sum(one.subscribers if clusters.scheme is Scheme.FAST else one.size for one in found)


def _watched(channels: Channels) -> Channels:
    return Channels(*(column[channels.subscribers > 0] for column in channels))


def _bins(worth: Floats, size: Floats) -> npt.NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        octaves = np.log2(worth / size)
    bins: npt.NDArray[np.int64] = np.clip(np.floor(octaves * _BINS_PER_OCTAVE), -_MOST_BINS, _MOST_BINS).astype(
        np.int64
    )
    return bins
