#!/usr/bin/env bash
# Ranks with a GPU each, through NCCL: tests/gpu/ranks.sh [selection ...]
#
# Needs CuPy with NCCL and at least two GPUs; not mpi4py. RANKS is the number of ranks (2), PYTHON another interpreter.
# Selections, all by default:
#   programs  every program over ranks, against NumPy
#   faults    a rank that is killed, and ranks that differ, end the job
#   bench     bandwidth of exchanges against NCCL's own calls, host time of an exchange, whole functions
#   pipelined products in pieces that overlap with the exchange of their rows, against one exchange
#   jax       the same functions under jax.jit with the same shardings, in one process
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export NCCL_NVLS_ENABLE=0 XLA_PYTHON_CLIENT_PREALLOCATE=false
ranks=${RANKS:-2}
status=0

run() {
    printf '\n== %s\n' "$*"
    "$@" || status=$?
}

launch() { run "$python" tests/gpu/launch_ranks.py "$ranks" "$@"; }

for selection in "${@:-all}"; do
    case "$selection" in
        programs) launch tests/runtime/rank_programs.py ;;
        faults) run "$python" tests/gpu/faults_on_gpus.py ;;
        bench) launch tests/bench/bench_ranks.py ;;
        pipelined) launch tests/bench/bench_ranks.py --pipelined ;;
        jax) run "$python" tests/bench/bench_ranks.py --jax "$ranks" ;;
        all) "$0" programs faults bench jax || status=$? ;;
        *) echo "no selection $selection: programs faults bench pipelined jax" >&2; exit 2 ;;
    esac
done
exit "$status"
