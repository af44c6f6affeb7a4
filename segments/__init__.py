"""Splitting a graph of opaque steps into groups, and running the groups in order.

    graph  ->  partition  ->  segments with index maps  ->  host program  ->  run over a device

The package knows integers, edges, verdicts and opaque values. It does not know ops, dtypes or arrays, and needs only
the standard library, so that every step of the way can be tested by itself:

    split = partition(graph, rule)
    segments = build_segments(graph, split, extents_of=extents_of)
    program = build_program(segments, graph.inputs, graph.outputs, extents=(-1, -2))
    outputs = Runner(program, device)(arguments)
"""

from segments.arguments import ArgumentManager
from segments.execute import CopyingDevice, Device, Runner, execute, execute_steps
from segments.graph import Graph, GraphError, MergePlan, Quotient, SegmentsError, Step
from segments.index_map import ExtentsOf, Segment, build_segment, build_segments
from segments.liveness import build_program, last_uses, releases
from segments.partition import Partition, partition
from segments.program import Alias, Allocate, Copy, Instruction, Launch, Program, ProgramError, Release
from segments.rules import (
    Edge,
    Predicate,
    Refusal,
    RefusalLog,
    Rule,
    SegmentationError,
    Verdict,
    any_of,
    as_verdict,
    both,
    negate,
    no,
    yes,
)
from segments.units import View

__all__ = [
    "Alias",
    "Allocate",
    "ArgumentManager",
    "Copy",
    "CopyingDevice",
    "Device",
    "Edge",
    "ExtentsOf",
    "Graph",
    "GraphError",
    "Instruction",
    "Launch",
    "MergePlan",
    "Partition",
    "Predicate",
    "Program",
    "ProgramError",
    "Quotient",
    "Refusal",
    "RefusalLog",
    "Release",
    "Rule",
    "Runner",
    "Segment",
    "SegmentationError",
    "SegmentsError",
    "Step",
    "Verdict",
    "View",
    "any_of",
    "as_verdict",
    "both",
    "build_program",
    "build_segment",
    "build_segments",
    "execute",
    "execute_steps",
    "last_uses",
    "negate",
    "no",
    "partition",
    "releases",
    "yes",
]
