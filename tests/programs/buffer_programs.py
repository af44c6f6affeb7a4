"""Rings, caches, queues, undo stacks, rolling windows, parsers and boards: state in containers and arrays."""

from __future__ import annotations

import bisect
import collections
import heapq
from collections import OrderedDict, deque

import numpy as np

from tests.programs.case import Case

buffer = np.zeros(16)
cursor = 0
overruns = 0
table: dict = {}
window_of: dict = {}
stack: list = []
settings = {"taps": [0.5, 0.3, 0.2], "gain": 1.0, "limits": {"low": -1.0, "high": 1.0}}


# A circular audio buffer written in blocks (PortAudio's ring buffer).
def write_block(block):
    global cursor, overruns
    n = len(block)
    end = cursor + n
    if end <= 16:
        buffer[cursor:end] = block
    else:
        first = 16 - cursor
        buffer[cursor:] = block[:first]
        buffer[: end - 16] = block[first:]
        overruns += 1
    cursor = end % 16
    return buffer.mean()


# Least recently used, by OrderedDict, as functools documents it.
class Lru:
    def __init__(self, capacity):
        self.capacity, self.entries, self.misses = capacity, OrderedDict(), 0

    def lookup(self, key, x):
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key] * 1.0
        self.misses += 1
        value = np.sqrt(np.abs(x)) + key
        self.entries[key] = value
        if len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
        return value * 1.0


# An undo stack of an editor of arrays.
class Editor:
    def __init__(self, canvas):
        self.canvas, self.undone, self.done = canvas, [], []

    def apply(self, op, x):
        if op == "paint":
            self.done.append(self.canvas.copy())
            self.canvas = np.maximum(self.canvas, x)
            self.undone.clear()
        elif op == "undo" and self.done:
            self.undone.append(self.canvas)
            self.canvas = self.done.pop()
        elif op == "redo" and self.undone:
            self.done.append(self.canvas)
            self.canvas = self.undone.pop()
        return self.canvas.sum(), len(self.done), len(self.undone)


# A priority queue of events (heapq's documentation), with times that are computed.
class Events:
    def __init__(self):
        self.queue, self.clock = [], 0.0

    def schedule(self, delays):
        for d in delays:
            heapq.heappush(self.queue, (float(self.clock + d), int(d * 10)))
        self.clock, kind = heapq.heappop(self.queue)
        return self.clock, kind


# Prim's lazy frontier: a heap of plain numbers.
def merge_frontier(distances):
    heap = list(distances)
    heapq.heapify(heap)
    return [heapq.heappop(heap) for _ in range(3)]


# pandas' rolling mean, streamed.
class Rolling:
    def __init__(self, width):
        self.width, self.values, self.total = width, deque(), 0.0

    def push(self, x):
        self.values.append(x)
        self.total += x
        if len(self.values) > self.width:
            self.total -= self.values.popleft()
        return self.total / len(self.values)


# A rolling window of rows shifted in place (oscilloscope code).
class Scope:
    def __init__(self, rows, columns):
        self.data, self.filled = np.zeros((rows, columns)), 0

    def shift_in(self, row):
        self.data[:-1] = self.data[1:]
        self.data[-1] = row
        self.filled = min(self.filled + 1, len(self.data))
        return self.data[-self.filled :].mean(axis=0)


# Double buffering by index, as in game engines.
class Frames:
    def __init__(self, shape):
        self.frames = [np.zeros(shape), np.zeros(shape)]
        self.current = 0

    def draw(self, y, x, color):
        back = self.frames[1 - self.current]
        back[...] = 0.9 * self.frames[self.current]
        back[y, x] = color
        back[max(y - 1, 0) : y + 2, x] += 0.1
        self.current = 1 - self.current
        return self.frames[self.current].sum()


# Tic-tac-toe and connect four boards with a turn.
class Board:
    def __init__(self, n):
        self.cells, self.player, self.winner = np.zeros((n, n), dtype=np.int8), 1, 0

    def drop(self, column):
        heights = (self.cells != 0).sum(axis=0)
        if heights[column] == len(self.cells):
            return False
        self.cells[len(self.cells) - 1 - heights[column], column] = self.player
        lines = [self.cells.sum(axis=0), self.cells.sum(axis=1), np.trace(self.cells), np.trace(self.cells[:, ::-1])]
        if any(np.any(line == self.player * len(self.cells)) for line in lines):
            self.winner = self.player
        self.player = -self.player
        return True


# 2048: slide a row to the left, merging equals.
def slide_row(row):
    tiles = [int(v) for v in row if v]
    merged, skip = [], False
    for k, v in enumerate(tiles):
        if skip:
            skip = False
            continue
        if k + 1 < len(tiles) and tiles[k + 1] == v:
            merged.append(2 * v)
            skip = True
        else:
            merged.append(v)
    row[:] = merged + [0] * (len(row) - len(merged))
    return sum(merged)


# Langton's ant.
class Ant2:
    turns = (1, -1)
    headings = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def __init__(self, n):
        self.grid = np.zeros((n, n), dtype=int)
        self.y = self.x = n // 2
        self.heading = 0

    def crawl(self):
        color = self.grid[self.y, self.x]
        self.heading = (self.heading + self.turns[int(color)]) % 4
        self.grid[self.y, self.x] ^= 1
        dy, dx = self.headings[self.heading]
        self.y = (self.y + dy) % len(self.grid)
        self.x = (self.x + dx) % len(self.grid)
        return self.grid.sum()


# Run-length encoding with arrays that grow (a parser).
class RunLengths:
    def __init__(self):
        self.values, self.lengths, self.last = [], [], None

    def feed(self, x):
        for v in x:
            v = int(v)
            if v == self.last:
                self.lengths[-1] += 1
            else:
                self.values.append(v)
                self.lengths.append(1)
                self.last = v
        return len(self.values)


# A token bucket (rate limiter).
class TokenBucket:
    def __init__(self, rate, burst):
        self.rate, self.burst, self.tokens, self.dropped = rate, burst, burst, 0

    def take(self, costs, elapsed):
        self.tokens = min(self.burst, self.tokens + elapsed * self.rate)
        need = costs.sum()
        if need <= self.tokens:
            self.tokens -= need
            return costs
        self.dropped += 1
        return costs * 0


# Memoised sizes: a window for each length.
def windowed(x):
    n = len(x)
    if n not in window_of:
        window_of[n] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / max(n - 1, 1))
    return x * window_of[n], len(window_of)


# Word counts in arrays.
def count_codes(codes):
    for c in codes:
        table[int(c)] = table.get(int(c), 0) + 1
    return max(table.values()), len(table)


# An infinite impulse response filter in direct form with its delay line.
class Biquad:
    def __init__(self, b, a):
        self.b, self.a, self.z = b, a, [0.0, 0.0]

    def filter(self, x):
        y = np.empty_like(x)
        z0, z1 = self.z
        for k in range(len(x)):
            y[k] = self.b[0] * x[k] + z0
            z0 = self.b[1] * x[k] - self.a[1] * y[k] + z1
            z1 = self.b[2] * x[k] - self.a[2] * y[k]
        self.z = [z0, z1]
        return y


# Settings that are nested.
def shaped(x):
    taps = settings["taps"]
    y = sum(t * np.roll(x, k) for k, t in enumerate(taps)) * settings["gain"]
    low, high = settings["limits"].values()
    return np.clip(y, low, high)


# A stack machine over arrays.
def evaluate_rpn(program, x):
    for token in program.split():
        if token == "x":
            stack.append(x)
        elif token in "+-*":
            b, a = stack.pop(), stack.pop()
            stack.append({"+": a + b, "-": a - b, "*": a * b}[token])
        else:
            stack.append(float(token))
    return stack.pop()


# Sorted insertion.
class Median:
    def __init__(self):
        self.ordered = []

    def add(self, value):
        bisect.insort(self.ordered, value)
        n = len(self.ordered)
        return self.ordered[n // 2] if n % 2 else 0.5 * (self.ordered[n // 2 - 1] + self.ordered[n // 2])


# Union of sets of labels by arrays.
class Labels:
    def __init__(self, n):
        self.parent = np.arange(n)
        self.count = n

    def root(self, k):
        while self.parent[k] != k:
            self.parent[k] = self.parent[self.parent[k]]
            k = self.parent[k]
        return k

    def join(self, a, b):
        ra, rb = self.root(a), self.root(b)
        if ra != rb:
            self.parent[ra] = rb
            self.count -= 1
        return self.count


# Chunks of a stream, with a remainder that is kept.
class Framer:
    def __init__(self, size):
        self.size, self.rest, self.frames = size, np.zeros(0), 0

    def feed(self, x):
        joined = np.concatenate([self.rest, x])
        count = len(joined) // self.size
        self.rest = joined[count * self.size :]
        self.frames += count
        return joined[: count * self.size].reshape(count, self.size).sum(axis=1)


# Exponential histogram by deque of pairs.
class Recent:
    def __init__(self):
        self.items = deque(maxlen=4)

    def see(self, k, x):
        self.items.appendleft((k, x.max()))
        best = max(self.items, key=lambda item: item[0])
        return best[1], len(self.items)


# A generator method that a call advances.
class Feeder:
    def __init__(self, data, batch):
        self.data, self.batch, self.order, self.at = data, batch, np.arange(len(data)), 0

    def batches(self):
        for start in range(0, len(self.data), self.batch):
            yield self.data[start : start + self.batch]

    def epoch_means(self, scale):
        self.at += 1
        return [scale * b.mean() for b in self.batches()]


# Bit boards.
class Bits:
    def __init__(self):
        self.mask = 0

    def flip(self, positions):
        for p in positions:
            self.mask ^= 1 << int(p)
        return bin(self.mask).count("1")


# A sparse matrix as a dict of keys.
class Dok:
    def __init__(self, n):
        self.n, self.data = n, {}

    def add(self, i, j, v):
        self.data[i, j] = self.data.get((i, j), 0.0) + v
        return sum(self.data.values())

    def matvec(self, x):
        y = np.zeros(self.n)
        for (i, j), v in self.data.items():
            y[i] += v * x[j]
        return y


# Counter arithmetic.
class Ballot:
    def __init__(self):
        self.votes = collections.Counter()

    def cast(self, choice, weight):
        self.votes[choice] += weight
        return self.votes.most_common(1)[0][1] * 2


def _ops(r):
    return str(r.choice(["paint", "undo", "redo", "paint"]))


CASES = [
    Case(write_block, lambda r, n: (r.normal(size=n),), between=lambda m, r: m.buffer.__imul__(0.5), sizes=(5, 7)),
    Case(Lru.lookup, lambda r, n: (int(r.integers(4)), r.normal(size=n)), instance=lambda r, n: Lru(2)),
    Case(Editor.apply, lambda r, n: (_ops(r), r.random(n)), instance=lambda r, n: Editor(np.zeros(n))),
    Case(Events.schedule, lambda r, n: (r.random(2),), instance=lambda r, n: Events()),
    Case(merge_frontier, lambda r, n: (r.random(n),)),
    Case(Rolling.push, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Rolling(3)),
    Case(Scope.shift_in, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Scope(4, n)),
    Case(
        Frames.draw,
        lambda r, n: (int(r.integers(n)), int(r.integers(n)), float(r.random())),
        instance=lambda r, n: Frames((n, n)),
    ),
    Case(Board.drop, lambda r, n: (int(r.integers(3)),), instance=lambda r, n: Board(3)),
    Case(slide_row, lambda r, n: (r.choice([0, 2, 4], 4),)),
    Case(Ant2.crawl, lambda r, n: (), instance=lambda r, n: Ant2(n)),
    Case(RunLengths.feed, lambda r, n: (r.integers(0, 2, n),), instance=lambda r, n: RunLengths()),
    Case(
        TokenBucket.take,
        lambda r, n: (r.random(n), float(r.random())),
        instance=lambda r, n: TokenBucket(3.0, 8.0),
    ),
    Case(windowed, lambda r, n: (r.normal(size=n),)),
    Case(count_codes, lambda r, n: (r.integers(0, 5, n),)),
    Case(
        Biquad.filter,
        lambda r, n: (r.normal(size=3 * n),),
        instance=lambda r, n: Biquad(np.array([0.2, 0.4, 0.2]), np.array([1.0, -0.5, 0.2])),
    ),
    Case(
        shaped,
        lambda r, n: (r.normal(size=n),),
        between=lambda m, r: (
            m.settings.update(gain=float(r.random())),
            m.settings["limits"].update(low=-float(r.random())),
            m.settings["taps"].append(0.1) if r.random() < 0.2 else None,
        ),
    ),
    Case(evaluate_rpn, lambda r, n: (str(r.choice(["x x * 2 +", "x 3 - x *"])), r.normal(size=n))),
    Case(Median.add, lambda r, n: (float(r.random()),), instance=lambda r, n: Median()),
    Case(Labels.join, lambda r, n: (int(r.integers(n)), int(r.integers(n))), instance=lambda r, n: Labels(n)),
    Case(Framer.feed, lambda r, n: (r.normal(size=n),), instance=lambda r, n: Framer(3)),
    Case(Recent.see, lambda r, n: (int(r.integers(10)), r.random(n)), instance=lambda r, n: Recent()),
    Case(
        Feeder.epoch_means,
        lambda r, n: (float(r.random()),),
        instance=lambda r, n: Feeder(r.normal(size=n), 3),
    ),
    Case(Bits.flip, lambda r, n: (r.integers(0, 20, 3),), instance=lambda r, n: Bits()),
    Case(
        Dok.add, lambda r, n: (int(r.integers(3)), int(r.integers(3)), float(r.random())), instance=lambda r, n: Dok(n)
    ),
    Case(
        Ballot.cast,
        lambda r, n: (str(r.choice(["red", "blue", "green"])), int(r.integers(1, 5))),
        instance=lambda r, n: Ballot(),
    ),
]
