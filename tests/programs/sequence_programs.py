"""Whole programs on sequences: of letters, of states and of bits."""

from __future__ import annotations

import numpy as np

from tests.programs.case import Case


# Levenshtein's distance with two rows.
def edit_distance(s, t):
    previous = np.arange(len(t) + 1)
    for i in range(len(s)):
        current = np.empty_like(previous)
        current[0] = i + 1
        cost = (t != s[i]).astype(int)
        for j in range(len(t)):
            current[j + 1] = min(previous[j + 1] + 1, current[j] + 1, previous[j] + cost[j])
        previous = current
    return previous[-1]


# Counts of words of k letters.
def kmer_profile(seq, k):
    base = 4 ** np.arange(k - 1, -1, -1)
    windows = np.lib.stride_tricks.sliding_window_view(seq, k)
    codes = windows @ base
    counts = np.bincount(codes, minlength=4**k)
    p = counts / counts.sum()
    entropy = -np.sum(p[p > 0] * np.log2(p[p > 0]))
    rc = 3 - windows[:, ::-1]
    canonical = np.minimum(codes, rc @ base)
    gc = np.convolve((seq == 1) | (seq == 2), np.ones(k) / k, mode="valid")
    return counts, entropy, np.unique(canonical), gc


# The lengths of the codes of Huffman.
def huffman_lengths(freq):
    n = len(freq)
    weight = np.concatenate([freq.astype(float), np.full(n - 1, np.inf)])
    parent = np.zeros(2 * n - 1, dtype=int)
    alive = weight < np.inf
    for node in range(n, 2 * n - 1):
        masked = np.where(alive, weight, np.inf)
        i = np.argmin(masked)
        masked[i] = np.inf
        j = np.argmin(masked)
        weight[node] = weight[i] + weight[j]
        parent[i] = parent[j] = node
        alive[i] = alive[j] = False
        alive[node] = True
    depth = np.zeros(2 * n - 1, dtype=int)
    for node in range(2 * n - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
    return depth[:n], (depth[:n] * freq).sum()


# CRC-32 of each row, by a table.
def crc32_rows(data):
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    crc = np.full(data.shape[0], 0xFFFFFFFF, dtype=np.uint32)
    for k in range(data.shape[1]):
        crc = table[(crc ^ data[:, k]) & 0xFF] ^ (crc >> 8)
    return crc ^ np.uint32(0xFFFFFFFF)


CASES = [
    Case(edit_distance, lambda r, n: (r.integers(0, 4, 2 * n), r.integers(0, 4, 2 * n + 3))),
    Case(kmer_profile, lambda r, n: (r.integers(0, 4, 30 * n), 4)),
    Case(huffman_lengths, lambda r, n: (r.permutation(4 * n) + 1,)),
    Case(crc32_rows, lambda r, n: (r.integers(0, 256, (n, 2 * n), dtype=np.uint8),)),
]
