"""Drawings of a workflow: each job type's DAG as text for a terminal, and as SVG. Pure.

The text goes from top to bottom, a line a task, with a column for each result that is on its way to another task: it
stays narrow however long a DAG is. The SVG goes from left to right, in layers (Sugiyama's way): a task stands one layer
behind the last that it waits for, and each layer is ordered by the barycentres of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from clarion.workflow.definition import JobType, Task, Workflow
from clarion.workflow.workload import SECONDS_IN


def _rate(rate_per_s: float | None, time_unit: str) -> str:
    return "no rate" if rate_per_s is None else f"{rate_per_s * SECONDS_IN[time_unit]:.4g}/{time_unit}"


def _about_job(job: JobType, time_unit: str) -> str:
    if job.arrival_rate_per_s is None:
        return "no arrival rate"
    return f"arrives {_rate(job.arrival_rate_per_s, time_unit)}, scv {job.scv:g}"


def _about_task(task: Task | None, time_unit: str) -> str:
    if task is None:
        return "there is no such task"
    rate = _rate(task.rate_per_s, time_unit)
    return rate if task.rate_per_s is None else f"{rate}, scv {task.scv:g}"


def _handler(task: Task | None) -> str:
    if task is None or task.handler is None:
        return ""
    return task.handler if isinstance(task.handler, str) else getattr(task.handler, "__qualname__", repr(task.handler))


def _sharers(workflow: Workflow, task: str, job: JobType) -> list[str]:
    return [other.name for other in workflow.jobs.values() if other is not job and task in other.dag]


def _shown(name: str) -> str:
    """Return a name as it can be written anywhere: no line ends, no codes that a terminal would follow."""
    return name if name.isprintable() else ascii(name)[1:-1]


# As text.


def draw_text(workflow: Workflow) -> str:
    """Return a drawing of each job type for a terminal or a pipe; tasks behind a cycle are only named."""
    return "\n\n".join(_draw_job(workflow, job) for job in workflow.jobs.values())


def _draw_job(workflow: Workflow, job: JobType) -> str:
    rows = _Rows()
    for task in job.order:
        rows.add(task, job.dag[task])
    drawn = [task for _, task in rows.rows if task is not None]
    told = {task: _told(workflow, job, task) for task in drawn}
    widths = [max(map(len, column)) for column in zip(*told.values(), strict=True)]
    lines_width = max((len(lines) for lines, _ in rows.rows), default=0)
    found = [f"{_shown(job.name)}  ({_about_job(job, workflow.time_unit)})"]
    for lines, named in rows.rows:
        words = [] if named is None else [f"{word:{width}}" for word, width in zip(told[named], widths, strict=True)]
        found.append("  ".join(["", f"{lines:{lines_width}}", *(word for word in words if word)]).rstrip())
    if left := [task for task in job.dag if task not in drawn]:
        found.append(f"  not drawn, because they wait for a circle: {', '.join(map(_shown, left))}")
    return "\n".join(found)


def _told(workflow: Workflow, job: JobType, task: str) -> tuple[str, ...]:
    known, others = workflow.tasks.get(task), _sharers(workflow, task, job)
    also = f"(also in {', '.join(map(_shown, others))})" if others else ""
    return _shown(task), _about_task(known, workflow.time_unit), _shown(_handler(known)), also


class _Rows:
    """The rows of a drawing, made from top to bottom: what a column holds is on its way to the task named there."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str | None]] = []  # lines, and the task that stands in this row
        self._columns: list[str | None] = []

    def add(self, task: str, afters: Sequence[str]) -> None:
        """Draw a task below those it waits for, and the beginnings of the ways to those that follow."""
        mine = [column for column, target in enumerate(self._columns) if target == task]
        if len(mine) > 1:
            if self.rows[-1][1] is None and set(self.rows[-1][0]) <= set("│ "):
                self.rows.pop()  # the next row says the same, and more
            self._branch(mine, "┴", "╯")
        for column in mine[1:]:
            self._columns[column] = None
        place = mine[0] if mine else self._free(0)
        self._columns[place] = task
        self.rows.append((self._lines({place: "●"}), task))
        self._columns[place] = None
        ways: list[int] = []
        for after in afters:
            ways.append(self._free(ways[-1] + 1 if ways else place))
            self._columns[ways[-1]] = after
        if ways:
            self._branch(ways, "┬", "╮")

    def _free(self, start: int) -> int:
        """Return a column from `start` on that holds nothing."""
        for column in range(start, len(self._columns)):
            if self._columns[column] is None:
                return column
        self._columns.extend([None] * (max(0, start - len(self._columns)) + 1))
        return len(self._columns) - 1

    def _branch(self, columns: Sequence[int], middle: str, last: str) -> None:
        """Add a row in which the first of the columns is one with the others; ways between them go on below."""
        marks = dict.fromkeys(columns, middle) | {columns[-1]: last}
        marks[columns[0]] = "├" if len(columns) > 1 else "│"
        self.rows.append((self._lines(marks, range(columns[0], columns[-1])), None))

    def _lines(self, marks: dict[int, str], level: range = range(0)) -> str:
        cells = []
        for column, target in enumerate(self._columns):
            across = "─" if column in level else " "
            cells.append(marks.get(column, "│" if target is not None else across) + across)
        return "".join(cells).rstrip()


# As SVG.

_FONT = "ui-sans-serif, system-ui, 'DejaVu Sans', Arial, sans-serif"
_INK, _PALE, _PAPER, _LINE = "#1a1a1a", "#5a5a5a", "#ffffff", "#9a9a9a"
_JOB_COLOURS = ("#1f5fa8", "#b3541e", "#2b7a3d", "#7a3d9a", "#a8324a", "#1f7f86", "#7a6212", "#4d4d4d")
_TASK_COLOURS = ("#e3eefb", "#fdebdc", "#e4f4e7", "#f0e6f7", "#fbe4e8", "#e0f3f4", "#f6f0d8", "#ececec")
_MARGIN, _HEAD, _GAP_X, _GAP_Y, _THIN_Y = 24, 46, 56, 18, 12
_CHARACTER, _SMALL_CHARACTER = 8.4, 6.7  # widths in these sizes, of a letter that is rather wide
_MOST = 34  # characters of a line; the rest is in the title that a browser shows
_SWEEPS = 8


class _Node(NamedTuple):
    """A task in its layer; or, without a name, where an edge goes through a layer."""

    task: str
    edge: int = -1
    layer: int = -1


class _Box(NamedTuple):
    lines: tuple[str, ...]
    width: float
    height: float


class _Panel(NamedTuple):
    """One job type's drawing, from (0, 0) on."""

    parts: list[str]
    width: float
    height: float


def draw_svg(workflow: Workflow) -> str:
    """Return an SVG with a panel for each job type; a task that several have is tinted alike in all of them."""
    shared = [task for task in workflow.tasks if sum(task in job.dag for job in workflow.jobs.values()) > 1]
    tints = {task: _TASK_COLOURS[number % len(_TASK_COLOURS)] for number, task in enumerate(shared)}
    parts: list[str] = []
    y, width = float(_MARGIN), 0.0
    for number, job in enumerate(workflow.jobs.values()):
        panel = _draw_panel(workflow, job, _JOB_COLOURS[number % len(_JOB_COLOURS)], f"arrow-{number}", tints)
        parts.append(f'<g transform="translate({_MARGIN} {y:g})" data-job="{escape(_shown(job.name))}">')
        parts += [*panel.parts, "</g>"]
        y += panel.height + _MARGIN
        width = max(width, panel.width)
    size = f"{width + 2 * _MARGIN:.0f} {y:.0f}"
    wide, high = size.split()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{wide}" height="{high}"'
        f' font-family="{_FONT}" font-size="14" fill="{_INK}">'
    )
    title = f"<title>{escape(_shown(workflow.name) or 'workflow')}</title>"
    return "\n".join([head, title, f'<rect width="100%" height="100%" fill="{_PAPER}"/>', *parts, "</svg>\n"])


def _draw_panel(workflow: Workflow, job: JobType, colour: str, arrow: str, tints: dict[str, str]) -> _Panel:
    boxes = {task: _box(task, workflow) for task in job.order}
    edges = [(task, after) for task in job.order for after in job.dag[task] if after in boxes]
    layers, ways = _layers(job, edges)
    _order(layers, ways)
    ys = _place(layers, ways, boxes)
    widths = [max(boxes[node.task].width for node in layer if node.task) for layer in layers]
    xs = [sum(widths[:number]) + number * _GAP_X for number in range(len(widths))]
    middle = {node: xs[number] + widths[number] / 2 for number, layer in enumerate(layers) for node in layer}
    parts = [
        f'<marker id="{arrow}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>',
        f'<text y="15" font-weight="bold" fill="{colour}">{escape(_shown(job.name))}</text>',
        f'<text y="33" font-size="12" fill="{_PALE}">{_about_job(job, workflow.time_unit)}</text>',
    ]
    for (task, after), way in zip(edges, ways, strict=True):
        points = [(middle[way[0]] + boxes[task].width / 2, ys[way[0]])]
        for node in way[1:-1]:
            points += [(xs[node.layer], ys[node]), (xs[node.layer] + widths[node.layer], ys[node])]
        points.append((middle[way[-1]] - boxes[after].width / 2, ys[way[-1]]))
        parts.append(
            f'<path d="{_curve(points)}" fill="none" stroke="{colour}" stroke-width="1.6" marker-end="url(#{arrow})"'
            f' data-from="{escape(_shown(task))}" data-to="{escape(_shown(after))}"/>'
        )
    for task, box in boxes.items():
        node = _Node(task)
        others = _sharers(workflow, task, job)
        parts += _draw_box(task, box, middle[node], ys[node], tints.get(task, _PAPER), _title(workflow, task, others))
    bottom = max((ys[_Node(task)] + box.height / 2 for task, box in boxes.items()), default=float(_HEAD))
    about_width = max(len(job.name) * _CHARACTER, len(_about_job(job, workflow.time_unit)) * _SMALL_CHARACTER)
    width = max(about_width, xs[-1] + widths[-1] if xs else 0.0)
    if left := [_shown(task) for task in job.dag if task not in boxes]:
        bottom += 24
        told = _cut(f"not drawn, because they wait for a circle: {', '.join(left)}", 100)
        parts.append(f'<text y="{bottom:g}" font-size="12">{escape(told)}</text>')
        width = max(width, len(told) * _SMALL_CHARACTER)
    return _Panel(parts, width, bottom)


def _box(task: str, workflow: Workflow) -> _Box:
    known = workflow.tasks.get(task)
    lines = [_cut(_shown(task), _MOST), _about_task(known, workflow.time_unit)]
    if handler := _handler(known):
        lines.append(_cut(_shown(handler), _MOST))
    width = max(len(lines[0]) * _CHARACTER, *(len(line) * _SMALL_CHARACTER for line in lines[1:])) + 24
    return _Box(tuple(lines), max(width, 90.0), 18.0 + 16 * len(lines))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _title(workflow: Workflow, task: str, others: Sequence[str]) -> str:
    told = f"{_shown(task)} {_shown(_handler(workflow.tasks.get(task)))}".rstrip()
    return f"{told}; also in {', '.join(map(_shown, others))}" if others else told


def _draw_box(task: str, box: _Box, x: float, y: float, tint: str, title: str) -> list[str]:
    left, top = x - box.width / 2, y - box.height / 2
    name, *rest = box.lines
    found = [
        f'<g data-task="{escape(_shown(task))}"><title>{escape(title)}</title>',
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" fill="{tint}"'
        f' stroke="{_LINE}"/>',
        f'<text x="{x:.1f}" y="{top + 21:.1f}" text-anchor="middle" font-weight="bold">{escape(name)}</text>',
    ]
    for number, line in enumerate(rest):
        place = f'x="{x:.1f}" y="{top + 38 + 16 * number:.1f}" text-anchor="middle"'
        found.append(f'<text {place} font-size="12" fill="{_PALE}">{escape(line)}</text>')
    return [*found, "</g>"]


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return a path that leaves and meets each point level."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x0 + x1) / 2
        path += f"L{x1:.1f} {y1:.1f}" if y0 == y1 else f"C{half:.1f} {y0:.1f} {half:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    return path


def _layers(job: JobType, edges: Sequence[tuple[str, str]]) -> tuple[list[list[_Node]], list[list[_Node]]]:
    """Return the nodes of each layer, and for each edge those that it goes through, from its first to its last."""
    depth: dict[str, int] = {}
    for task in job.order:
        depth[task] = max((depth[before] + 1 for before in job.predecessors(task) if before in depth), default=0)
    layers: list[list[_Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for task, layer in depth.items():
        layers[layer].append(_Node(task))
    ways = []
    for number, (task, after) in enumerate(edges):
        through = [_Node("", number, layer) for layer in range(depth[task] + 1, depth[after])]
        for node in through:
            layers[node.layer].append(node)
        ways.append([_Node(task), *through, _Node(after)])
    return layers, ways


def _neighbours(ways: Iterable[Sequence[_Node]]) -> tuple[dict[_Node, list[_Node]], dict[_Node, list[_Node]]]:
    before: dict[_Node, list[_Node]] = {}
    after: dict[_Node, list[_Node]] = {}
    for way in ways:
        for one, other in pairwise(way):
            before.setdefault(other, []).append(one)
            after.setdefault(one, []).append(other)
    return before, after


def _order(layers: list[list[_Node]], ways: Sequence[Sequence[_Node]]) -> None:
    """Order each layer by the barycentres of its neighbours, to and fro; keep the order with the fewest crossings."""
    before, after = _neighbours(ways)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, after)
    for sweep in range(_SWEEPS):
        beside = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            rank = {node: float(place) for each in layers for place, node in enumerate(each)}
            centre = {node: _mean([rank[one] for one in beside.get(node, [node])]) for node in layer}
            layer.sort(key=centre.__getitem__)
        if (count := _crossings(layers, after)) < fewest:
            best, fewest = [list(layer) for layer in layers], count
    layers[:] = best


def _crossings(layers: Sequence[Sequence[_Node]], after: dict[_Node, list[_Node]]) -> int:
    count = 0
    for layer, following in pairwise(layers):
        rank = {node: place for place, node in enumerate(following)}
        ends = [rank[other] for node in layer for other in sorted(after.get(node, ()), key=rank.__getitem__)]
        count += sum(one > other for place, one in enumerate(ends) for other in ends[place + 1 :])
    return count


def _place(layers: list[list[_Node]], ways: Sequence[Sequence[_Node]], boxes: dict[str, _Box]) -> dict[_Node, float]:
    """Return the height of each node: near the mean of its neighbours', in its layer's order, and clear of others."""
    before, after = _neighbours(ways)
    ys: dict[_Node, float] = {}

    def height(node: _Node) -> float:
        return boxes[node.task].height + _GAP_Y if node.task else _THIN_Y

    for layer in layers:
        for place, node in enumerate(layer):
            ys[node] = sum(height(one) for one in layer[:place]) + height(node) / 2 - sum(map(height, layer)) / 2
    for sweep in range(2 * _SWEEPS):
        beside = before if sweep % 2 == 0 else after
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wished = [_mean([ys[one] for one in beside.get(node, [node])]) for node in layer]
            placed: list[float] = []
            for node, wish in zip(layer, wished, strict=True):
                least = placed[-1] + (height(layer[len(placed) - 1]) + height(node)) / 2 if placed else wish
                placed.append(max(wish, least))
            shift = _mean([wish - y for wish, y in zip(wished, placed, strict=True)])
            ys |= {node: y + shift for node, y in zip(layer, placed, strict=True)}
    top = min((y - height(node) / 2 for node, y in ys.items()), default=0.0)
    return {node: round(y - top + _HEAD, 1) for node, y in ys.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
