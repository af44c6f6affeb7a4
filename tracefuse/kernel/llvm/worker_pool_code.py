"""The worker pool's code in LLVM IR: native threads that run chunks of a grid without Python.

The pool runs one job at a time. The caller publishes the job and issues one ticket per worker that may join. Caller and
workers claim chunks through an atomic counter. Then the caller revokes the unused tickets and waits until every worker
that joined has left, so no worker refers to the job after the call. Workers spin for tens of microseconds after a job,
then sleep on a futex. A concurrent second caller runs its grid alone.
"""

from __future__ import annotations

import platform

# How long a worker spins for the next job before it sleeps.
SPIN_NANOSECONDS = 40_000
# How often the caller polls for workers to leave before it yields the processor.
SPINS_BEFORE_YIELD = 4_000
# The maximum number of chunks per thread. With many small chunks, a worker that wakes late takes fewer of them, and at
# the end threads wait for at most one chunk.
CHUNKS_PER_THREAD = 32
# The maximum number of workers, regardless of the processors.
MOST_WORKERS = 4096

_FUTEX = {"x86_64": 202, "aarch64": 98}
_PAUSE = {"x86_64": "pause", "aarch64": "isb"}

# @busy: a job is running. @tickets: workers that may still join. @inside: workers that have joined or are trying to.
# @sequence: the job's number, which sleepers wait on. @next: the first unclaimed iteration.
# Two pairs of accesses need sequential consistency. A worker increments @inside before it takes a ticket, and the
# caller revokes the tickets before it reads @inside. A worker increments @sleepers before it sleeps on @sequence, and
# the caller increments @sequence before it reads @sleepers.
_TEXT = """
@busy = internal global i32 0, align 64
@tickets = internal global i64 0, align 64
@inside = internal global i64 0, align 64
@sequence = internal global i32 0, align 64
@sleepers = internal global i64 0, align 64
@next = internal global i64 0, align 64
@job = internal global {{ ptr, ptr, i64, i64 }} zeroinitializer, align 64
@threads = internal global i64 1, align 64
@started = internal global i64 0
@stopping = internal global i32 0, align 64
@handles = internal global [{most_workers} x i64] zeroinitializer, align 64

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)

define internal void @pause() alwaysinline {{
  call void asm sideeffect "{pause}", "~{{memory}}"()
  ret void
}}

define internal i64 @now() {{
  %time = alloca [2 x i64]
  %code = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %place = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %place
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %rest
  ret i64 %total
}}

define internal void @run_chunks() {{
start:
  %body = load ptr, ptr @job
  %context = load ptr, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 1)
  %extent = load i64, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 2)
  %grain = load i64, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 3)
  br label %again
again:
  %begin = atomicrmw add ptr @next, i64 %grain seq_cst
  %left = sub i64 %extent, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %run, label %done
run:
  %short = icmp slt i64 %left, %grain
  %count = select i1 %short, i64 %left, i64 %grain
  %end = add i64 %begin, %count
  call void %body(ptr %context, i64 %begin, i64 %end)
  br label %again
done:
  ret void
}}

define internal ptr @worker(ptr %first) {{
start:
  %number = ptrtoint ptr %first to i64
  %seen.first = trunc i64 %number to i32
  br label %wait
wait:
  %seen = phi i32 [ %seen.first, %start ], [ %current, %leave ]
  %began = call i64 @now()
  %deadline = add i64 %began, {spin}
  br label %look
look:
  %tries = phi i32 [ 0, %wait ], [ %tries.next, %pausing ], [ 0, %clock ], [ 0, %slept ]
  %current = load atomic i32, ptr @sequence seq_cst, align 4
  %changed = icmp ne i32 %current, %seen
  br i1 %changed, label %join, label %idle
idle:
  %tries.next = add i32 %tries, 1
  %many = icmp ugt i32 %tries.next, 32
  br i1 %many, label %clock, label %pausing
pausing:
  call void @pause()
  br label %look
clock:
  %time = call i64 @now()
  %late = icmp sgt i64 %time, %deadline
  br i1 %late, label %sleep, label %look
sleep:
  %seen.wide = zext i32 %seen to i64
  %s0 = atomicrmw add ptr @sleepers, i64 1 seq_cst
  %code = call i64 (i64, ...) @syscall(i64 {futex}, ptr @sequence, i64 128, i64 %seen.wide, ptr null, ptr null, i64 0)
  %s1 = atomicrmw sub ptr @sleepers, i64 1 seq_cst
  br label %slept
slept:
  br label %look
join:
  %stop = load atomic i32, ptr @stopping seq_cst, align 4
  %ends = icmp ne i32 %stop, 0
  br i1 %ends, label %end, label %enter
end:
  ret ptr null
enter:
  %i0 = atomicrmw add ptr @inside, i64 1 seq_cst
  %ticket = atomicrmw sub ptr @tickets, i64 1 seq_cst
  %joined = icmp sgt i64 %ticket, 0
  br i1 %joined, label %work, label %leave
work:
  call void @run_chunks()
  br label %leave
leave:
  %i1 = atomicrmw sub ptr @inside, i64 1 seq_cst
  br label %wait
}}

define internal void @start_workers(i64 %wanted) {{
start:
  %all = alloca [128 x i8], align 8
  %before = alloca [128 x i8], align 8
  %thread = alloca i64
  %c0 = call i32 @sigfillset(ptr %all)
  %c1 = call i32 @pthread_sigmask(i32 0, ptr %all, ptr %before)
  br label %head
head:
  %have = load i64, ptr @started
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %done, label %create
create:
  %seen = load atomic i32, ptr @sequence seq_cst, align 4
  %wide = zext i32 %seen to i64
  %argument = inttoptr i64 %wide to ptr
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %argument)
  %fine = icmp eq i32 %failed, 0
  br i1 %fine, label %created, label %done
created:
  %id = load i64, ptr %thread
  %slot = getelementptr [{most_workers} x i64], ptr @handles, i64 0, i64 %have
  store i64 %id, ptr %slot
  %more = add i64 %have, 1
  store i64 %more, ptr @started
  br label %head
done:
  %c3 = call i32 @pthread_sigmask(i32 2, ptr %before, ptr null)
  ret void
}}

define void @parallel_for(ptr %body, ptr %context, i64 %extent, i64 %wanted_grain) {{
  tail call void @parallel_for_at_most(ptr %body, ptr %context, i64 %extent, i64 %wanted_grain, i64 {all})
  ret void
}}

define void @parallel_for_at_most(ptr %body, ptr %context, i64 %extent, i64 %wanted_grain, i64 %most.threads) {{
start:
  %all = load atomic i64, ptr @threads monotonic, align 8
  %limited = icmp slt i64 %most.threads, %all
  %threads = select i1 %limited, i64 %most.threads, i64 %all
  %several = icmp sgt i64 %threads, 1
  %large = icmp slt i64 %wanted_grain, %extent
  %stop = load atomic i32, ptr @stopping seq_cst, align 4
  %goes.on = icmp eq i32 %stop, 0
  %worth = and i1 %several, %large
  %try = and i1 %worth, %goes.on
  br i1 %try, label %enter, label %alone
alone:
  call void %body(ptr %context, i64 0, i64 %extent)
  ret void
enter:
  %pair = cmpxchg ptr @busy, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %mine, label %publish, label %alone
publish:
  %most = mul i64 %threads, {chunks_per_thread}
  %even = sdiv i64 %extent, %most
  %coarser = icmp sgt i64 %even, %wanted_grain
  %grain = select i1 %coarser, i64 %even, i64 %wanted_grain
  %others = sub i64 %threads, 1
  %have = load i64, ptr @started
  %missing = icmp slt i64 %have, %others
  br i1 %missing, label %make, label %ready
make:
  call void @start_workers(i64 %others)
  br label %ready
ready:
  store ptr %body, ptr @job
  store ptr %context, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 1)
  store i64 %extent, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 2)
  store i64 %grain, ptr getelementptr ({{ ptr, ptr, i64, i64 }}, ptr @job, i64 0, i32 3)
  store atomic i64 0, ptr @next seq_cst, align 8
  %up = add i64 %extent, %grain
  %up1 = sub i64 %up, 1
  %chunks = sdiv i64 %up1, %grain
  %help = sub i64 %chunks, 1
  %fewer = icmp slt i64 %help, %others
  %tickets = select i1 %fewer, i64 %help, i64 %others
  store atomic i64 %tickets, ptr @tickets seq_cst, align 8
  %s = atomicrmw add ptr @sequence, i32 1 seq_cst
  %sleeping = load atomic i64, ptr @sleepers seq_cst, align 8
  %wake = icmp sgt i64 %sleeping, 0
  br i1 %wake, label %waking, label %share
waking:
  %code = call i64 (i64, ...) @syscall(i64 {futex}, ptr @sequence, i64 129, i64 %tickets, ptr null, ptr null, i64 0)
  br label %share
share:
  call void @run_chunks()
  store atomic i64 0, ptr @tickets seq_cst, align 8
  br label %wait
wait:
  %spins = phi i64 [ 0, %share ], [ %spins.next, %spin ], [ %spins.next, %yield ]
  %inside = load atomic i64, ptr @inside seq_cst, align 8
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %finish, label %busy
busy:
  %spins.next = add i64 %spins, 1
  %long = icmp sgt i64 %spins.next, {yield_after}
  br i1 %long, label %yield, label %spin
spin:
  call void @pause()
  br label %wait
yield:
  %y = call i32 @sched_yield()
  br label %wait
finish:
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}}

define void @stop_workers() {{
start:
  store atomic i32 1, ptr @stopping seq_cst, align 4
  br label %take
take:
  %pair = cmpxchg ptr @busy, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %mine, label %tell, label %later
later:
  %y = call i32 @sched_yield()
  br label %take
tell:
  store atomic i32 1, ptr @stopping seq_cst, align 4
  %s = atomicrmw add ptr @sequence, i32 1 seq_cst
  %w = call i64 (i64, ...) @syscall(i64 {futex}, ptr @sequence, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  %have = load i64, ptr @started
  br label %head
head:
  %k = phi i64 [ 0, %tell ], [ %next, %wait ]
  %more = icmp slt i64 %k, %have
  br i1 %more, label %wait, label %done
wait:
  %slot = getelementptr [{most_workers} x i64], ptr @handles, i64 0, i64 %k
  %id = load i64, ptr %slot
  %c = call i32 @pthread_join(i64 %id, ptr null)
  %next = add i64 %k, 1
  br label %head
done:
  store i64 0, ptr @started
  store atomic i32 0, ptr @stopping seq_cst, align 4
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}}

define void @set_threads(i64 %count) {{
  store atomic i64 %count, ptr @threads seq_cst, align 8
  ret void
}}

define i64 @count_workers() {{
  %count = load i64, ptr @started
  ret i64 %count
}}

define void @forget_workers() {{
  store i64 0, ptr @started
  store i64 0, ptr @sleepers
  store i64 0, ptr @inside
  store i64 0, ptr @tickets
  store i32 0, ptr @stopping
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}}
"""


def pool_text() -> str:
    """Return the pool's module for this machine."""
    machine = platform.machine()
    return _TEXT.format(
        pause=_PAUSE.get(machine, ""),
        futex=_FUTEX.get(machine, 0),
        spin=SPIN_NANOSECONDS,
        chunks_per_thread=CHUNKS_PER_THREAD,
        yield_after=SPINS_BEFORE_YIELD,
        all=1 << 62,
        most_workers=MOST_WORKERS,
    )


# A `parallel_for` with a limited number of threads, for the kernels linked with it.
_LIMITED = """
declare void @parallel_for_at_most(ptr, ptr, i64, i64, i64)

define void @parallel_for(ptr %body, ptr %context, i64 %extent, i64 %wanted_grain) {{
  tail call void @parallel_for_at_most(ptr %body, ptr %context, i64 %extent, i64 %wanted_grain, i64 {limit})
  ret void
}}
"""


def limited_text(limit: int) -> str:
    """Return the module of a `parallel_for` that uses at most `limit` threads."""
    return _LIMITED.format(limit=limit)


def has_workers() -> bool:
    """Return whether the system has futexes, on which workers sleep. Without them every grid runs on the caller."""
    return platform.system() == "Linux" and platform.machine() in _FUTEX
