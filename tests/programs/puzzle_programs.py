"""Whole programs of games, cellular automata, graphs and puzzles."""

from __future__ import annotations

import heapq
import itertools
from string import ascii_uppercase

import numpy as np

from tests.programs.case import Case


# All-pairs shortest paths (Floyd and Warshall), in place.
def floyd_warshall(distance):
    for k in range(len(distance)):
        np.minimum(distance, distance[:, k, None] + distance[None, k, :], out=distance)
    return distance


# Breadth-first levels by Boolean matrix products.
def bfs_levels(adjacency, source):
    n = adjacency.shape[0]
    level = np.full(n, -1)
    frontier = np.zeros(n, dtype=bool)
    frontier[source] = True
    depth = 0
    while frontier.any():
        level[frontier] = depth
        frontier = (adjacency[frontier].any(axis=0)) & (level < 0)
        depth += 1
    return level


# Triangles of a graph, and clustering coefficients (Watts and Strogatz).
def clustering(adjacency):
    a = adjacency.astype(float)
    a3 = np.linalg.matrix_power(a, 3)
    degree = a.sum(0)
    pairs = degree * (degree - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        local = np.where(pairs > 0, np.diag(a3) / pairs, 0.0)
    return np.trace(a3) / 6, local


# HITS scores (Kleinberg).
def hubs_and_authorities(links, rounds):
    hubs = np.ones(len(links))
    for _ in range(rounds):
        authorities = links.T @ hubs
        authorities /= np.linalg.norm(authorities) or 1
        hubs = links @ authorities
        hubs /= np.linalg.norm(hubs) or 1
    return hubs, authorities


# The Fiedler vector splits a graph in two.
def bisect_graph(weights):
    laplacian = np.diag(weights.sum(axis=1)) - weights
    values, vectors = np.linalg.eigh(laplacian)
    fiedler = vectors[:, 1]
    side = fiedler * np.sign(fiedler[0]) >= 0
    cut = weights[side][:, ~side].sum()
    return values[1], side, cut


# Minimum spanning tree by Prim's algorithm with NumPy rows.
def prim(weights):
    n = len(weights)
    best = weights[0].copy()
    inside = np.zeros(n, bool)
    inside[0] = True
    total = 0.0
    for _ in range(n - 1):
        k = int(np.argmin(np.where(inside, np.inf, best)))
        total += best[k]
        inside[k] = True
        best = np.minimum(best, weights[k])
    return total


# Wireworld (Silverman).
def wireworld(grid, steps):
    EMPTY, HEAD, TAIL, WIRE = range(4)
    for _ in range(steps):
        heads = np.pad((grid == HEAD).astype(int), 1)
        near = sum(
            heads[i : i + grid.shape[0], j : j + grid.shape[1]] for i in range(3) for j in range(3) if not i == j == 1
        )
        grid = np.select(
            [grid == HEAD, grid == TAIL, (grid == WIRE) & ((near == 1) | (near == 2))], [TAIL, WIRE, HEAD], grid
        )
    return grid


# Abelian sandpile (Bak, Tang, Wiesenfeld), toppled to rest.
def sandpile(sand):
    topplings = 0
    while (high := sand >= 4).any():
        sand[high] -= 4
        topplings += high.sum()
        sand[1:] += high[:-1]
        sand[:-1] += high[1:]
        sand[:, 1:] += high[:, :-1]
        sand[:, :-1] += high[:, 1:]
    return topplings


# Langton's ant.
class Ant:
    def __init__(self, size):
        self.grid = np.zeros((size, size), dtype=np.uint8)
        self.y = self.x = size // 2
        self.heading = 0

    MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))

    def walk(self, steps):
        for _ in range(steps):
            black = self.grid[self.y, self.x]
            self.heading = (self.heading + (1 if black == 0 else -1)) % 4
            self.grid[self.y, self.x] ^= 1
            dy, dx = self.MOVES[self.heading]
            self.y = (self.y + dy) % len(self.grid)
            self.x = (self.x + dx) % len(self.grid)
        return int(self.grid.sum())


# Conway's game on a dictionary of live cells made from an array.
def bounding_box(grid):
    rows, cols = np.where(grid)
    if rows.size == 0:
        return None
    return rows.min(), cols.min(), rows.max() + 1, cols.max() + 1


# 2048: one move to the left, row by row.
def slide_left(board):
    moved = np.zeros_like(board)
    score = 0
    for r, row in enumerate(board):
        tiles = row[row != 0]
        out = []
        k = 0
        while k < len(tiles):
            if k + 1 < len(tiles) and tiles[k] == tiles[k + 1]:
                out.append(2 * tiles[k])
                score += int(2 * tiles[k])
                k += 2
            else:
                out.append(tiles[k])
                k += 1
        moved[r, : len(out)] = out
    return moved, score


# Winners of tic-tac-toe boards, all at once.
def tic_tac_toe(boards):
    lines = np.concatenate(
        [
            boards,
            boards.transpose(0, 2, 1),
            boards[:, [0, 1, 2], [0, 1, 2]][:, None],
            boards[:, [0, 1, 2], [2, 1, 0]][:, None],
        ],
        axis=1,
    )
    sums = lines.sum(axis=2)
    return np.where((sums == 3).any(1), 1, np.where((sums == -3).any(1), -1, 0))


# Candidates of a Sudoku by Boolean arrays.
def sudoku_candidates(puzzle):
    possible = np.ones((9, 9, 9), dtype=bool)
    for digit in range(1, 10):
        placed = puzzle == digit
        rows, cols = placed.any(axis=1), placed.any(axis=0)
        boxes = placed.reshape(3, 3, 3, 3).any(axis=(1, 3)).repeat(3, axis=0).repeat(3, axis=1)
        possible[..., digit - 1] &= ~(rows[:, None] | cols | boxes)
    possible[puzzle > 0] = False
    return possible.sum(-1), np.argwhere(possible.sum(-1) == 1)


# Attacked squares of queens.
def queens_attacks(rows):
    n = len(rows)
    cols = np.arange(n)
    i, j = np.triu_indices(n, 1)
    same_row = rows[i] == rows[j]
    diagonal = np.abs(rows[i] - rows[j]) == np.abs(cols[i] - cols[j])
    return np.count_nonzero(same_row | diagonal)


# Caesar and Vigenere on codes.
def vigenere(codes, key):
    shift = np.resize(key, codes.shape)
    return (codes - 65 + shift) % 26 + 65


# Letter frequencies against English.
def letter_scores(codes):
    counts = np.bincount(codes - 65, minlength=26)
    table = dict(zip(ascii_uppercase, counts.tolist(), strict=True))
    best = max(table, key=table.get)
    return counts / counts.sum(), best


# Maze: flood fill distance by relaxation.
def maze_distance(walls):
    big = walls.size + 1
    dist = np.where(walls, big, big)
    dist[0, 0] = 0
    for _ in range(walls.shape[0] + walls.shape[1]):
        near = dist.copy()
        near[1:] = np.minimum(near[1:], dist[:-1] + 1)
        near[:-1] = np.minimum(near[:-1], dist[1:] + 1)
        near[:, 1:] = np.minimum(near[:, 1:], dist[:, :-1] + 1)
        near[:, :-1] = np.minimum(near[:, :-1], dist[:, 1:] + 1)
        dist = np.where(walls, big, near)
        dist[0, 0] = 0
    return dist


# Travelling salesman: 2-opt gains of a tour.
def two_opt_gain(points, tour):
    p = points[tour]
    q = np.roll(p, -1, axis=0)
    length = np.hypot(*(q - p).T)
    n = len(tour)
    best, where = 0.0, (0, 0)
    for i, j in itertools.combinations(range(n), 2):
        old = length[i] + length[j]
        new = np.hypot(*(p[j] - p[i])) + np.hypot(*(q[j] - q[i]))
        if new - old < best - 1e-12:
            best, where = new - old, (i, j)
    return float(best), where, length.sum()


# The dragon curve by rotating and joining.
def dragon_curve(start, folds):
    points = start
    turn = np.array([[0, -1], [1, 0]])
    for _ in range(folds):
        pivot = points[-1]
        tail = (points[:-1][::-1] - pivot) @ turn.T + pivot
        points = np.vstack((points, tail))
    return points


# Hamming(7,4): encode, flip, correct.
def hamming_correct(data, flips):
    G = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    H = np.array([[1, 0, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    code = data @ G.T % 2
    received = code.copy()
    received[np.arange(len(data)), flips] ^= 1
    syndrome = received @ H.T % 2
    position = syndrome @ (1 << np.arange(3)) - 1
    wrong = position >= 0
    received[wrong, position[wrong]] ^= 1
    return received[:, [2, 4, 5, 6]], (received == code).all()


# The k largest by a heap beside np.partition.
def top_k(values, k):
    heap = heapq.nlargest(k, values.tolist())
    return np.sort(np.partition(values, -k)[-k:])[::-1], heap


# The run of numbers with the largest sum (Kadane).
def largest_run(numbers):
    best = total = 0
    start = first = last = 0
    for position, number in enumerate(numbers):
        total += number
        if total < 0:
            total, start = 0, position + 1
        elif total > best:
            best, first, last = total, start, position + 1
    return best, numbers[first:last]


# The clusters of occupied sites that reach from the first row to the last.
def percolating_clusters(occupied):
    labels = np.where(occupied, np.arange(1, occupied.size + 1).reshape(occupied.shape), 0)
    while True:
        below = np.pad(labels, ((0, 1), (0, 0)))[1:]
        spread = np.where(occupied, np.maximum(labels, below), 0)
        if np.array_equal(spread, labels):
            break
        labels = spread
    return np.intersect1d(labels[0][labels[0] > 0], labels[-1][labels[-1] > 0])


CASES = [
    Case(floyd_warshall, lambda r, n: (r.random((n, n)),)),
    Case(bfs_levels, lambda r, n: (r.random((n, n)) < 0.25, 0)),
    Case(clustering, lambda r, n: (_graph(r, n),)),
    Case(hubs_and_authorities, lambda r, n: ((r.random((n, n)) < 0.4).astype(float), 5)),
    Case(bisect_graph, lambda r, n: (_weights(r, n),)),
    Case(prim, lambda r, n: (_weights(r, n),)),
    Case(wireworld, lambda r, n: (r.integers(0, 4, (n, n)), 3)),
    Case(sandpile, lambda r, n: (r.integers(0, 8, (n, n)),)),
    Case(Ant.walk, lambda r, n: (12,), instance=lambda r, n: Ant(n)),
    Case(bounding_box, lambda r, n: (r.random((n, n)) < 0.1,)),
    Case(slide_left, lambda r, n: (2 ** r.integers(1, 3, (4, 4)) * r.integers(0, 2, (4, 4)),)),
    Case(tic_tac_toe, lambda r, n: (r.integers(-1, 2, (n, 3, 3)),)),
    Case(sudoku_candidates, lambda r, n: (r.integers(0, 10, (9, 9)) * (r.random((9, 9)) < 0.3),)),
    Case(queens_attacks, lambda r, n: (r.integers(0, n, n),)),
    Case(vigenere, lambda r, n: (r.integers(65, 91, 3 * n), r.integers(0, 26, 5))),
    Case(letter_scores, lambda r, n: (r.integers(65, 91, 3 * n),)),
    Case(maze_distance, lambda r, n: (r.random((n, n)) < 0.3,)),
    Case(two_opt_gain, lambda r, n: (r.random((6, 2)), r.permutation(6))),
    Case(dragon_curve, lambda r, n: (np.array([[0, 0], [1, 0]]), 5)),
    Case(hamming_correct, lambda r, n: (r.integers(0, 2, (n, 4)), r.integers(0, 7, n))),
    Case(largest_run, lambda r, n: (r.integers(-9, 9, n),)),
    Case(percolating_clusters, lambda r, n: (r.random((n, n)) > 0.3,), sizes=(3, 4)),
    Case(top_k, lambda r, n: (r.normal(size=2 * n), 4)),
]


def _graph(r, n):
    upper = np.triu(r.random((n, n)) < 0.5, 1)
    return upper | upper.T


def _weights(r, n):
    upper = np.triu(r.random((n, n)), 1)
    return upper + upper.T
