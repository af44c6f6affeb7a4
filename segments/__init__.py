"""Partition a graph of opaque steps into segments, and run the segments in order on a device.

    graph  ->  partition  ->  segments with index maps  ->  host program  ->  run over a device

The package works on integers, edges, verdicts and opaque values. It has no notion of ops, dtypes or arrays and depends
on the standard library alone, so each stage can be tested in isolation:

    split = partition(graph, rule)
    segments = build_segments(graph, split, extents_of=extents_of)
    program = build_program(segments, graph.inputs, graph.outputs, extents=(-1, -2))
    outputs = Runner(program, device)(arguments)
"""

from segments.arguments import ArgumentManager
from segments.device import CommunicatingDevice, CopyingDevice, Device, HostOpDevice, SlicingDevice
from segments.execute import Runner, execute, execute_steps
from segments.graph import Graph, GraphError, MergePlan, Quotient, SegmentsError, Step
from segments.index_map import ExtentsOf, Segment, build_segment, build_segments
from segments.instructions import (
    Alias,
    AllocateBuffer,
    Communicate,
    CopyBuffer,
    Count,
    EndCoalescing,
    GetStream,
    HostLoop,
    HostOp,
    Instruction,
    Integer,
    Launch,
    NamedStream,
    PoolStream,
    ProgramError,
    Release,
    Select,
    SetStream,
    StartCoalescing,
    Synchronize,
    Wait,
    WaitRequest,
    in_order,
    inputs_of,
    integer_of,
    name_of,
    names_of,
    outputs_of,
    remainder_of,
)
from segments.liveness import build_program, last_uses, releases
from segments.memory_use import MemoryUse, memory_timeline, memory_use
from segments.partition import Partition, partition
from segments.program import Program, ProgramBuilder
from segments.rules import (
    Edge,
    Predicate,
    Refusal,
    RefusalCode,
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
from segments.run_streams import Streams, StreamsDevice
from segments.spread import spread
from segments.thread_streams import ThreadStreams, run_on_threads
from segments.units import View

__all__ = [
    "Alias",
    "AllocateBuffer",
    "ArgumentManager",
    "Communicate",
    "CommunicatingDevice",
    "CopyBuffer",
    "CopyingDevice",
    "Count",
    "Device",
    "Edge",
    "EndCoalescing",
    "ExtentsOf",
    "GetStream",
    "Graph",
    "GraphError",
    "HostLoop",
    "HostOp",
    "HostOpDevice",
    "Instruction",
    "Integer",
    "Launch",
    "MemoryUse",
    "MergePlan",
    "NamedStream",
    "Partition",
    "PoolStream",
    "Predicate",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Quotient",
    "Refusal",
    "RefusalCode",
    "RefusalLog",
    "Release",
    "Rule",
    "Runner",
    "Segment",
    "SegmentationError",
    "SegmentsError",
    "Select",
    "SetStream",
    "SlicingDevice",
    "StartCoalescing",
    "Step",
    "Streams",
    "StreamsDevice",
    "Synchronize",
    "ThreadStreams",
    "Verdict",
    "View",
    "Wait",
    "WaitRequest",
    "any_of",
    "as_verdict",
    "both",
    "build_program",
    "build_segment",
    "build_segments",
    "execute",
    "execute_steps",
    "in_order",
    "inputs_of",
    "integer_of",
    "last_uses",
    "memory_timeline",
    "memory_use",
    "name_of",
    "names_of",
    "negate",
    "no",
    "outputs_of",
    "partition",
    "releases",
    "remainder_of",
    "run_on_threads",
    "spread",
    "yes",
]
