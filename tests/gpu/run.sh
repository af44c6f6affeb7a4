#!/usr/bin/env bash
# The GPU tests and benchmarks, in one call: tests/gpu/run.sh [selection ...]
#
# None: all tests, then the benchmarks without torch. Needs CuPy and a GPU; PYTHON names another interpreter. Exits with
# the first failure's status after all selections have run. Selections:
#   kernels    hand-written kernels, every primitive; clusters of blocks
#   ops        every op, by several processes
#   random     random fusions
#   functions  whole functions
#   arrays     kinds of arrays, streams, large sizes
#   memory     results in output buffers, many small arrays
#   streams    values and segments on streams
#   graphs     CUDA graphs
#   checking   check mode, options, printed values
#   products   matrices through cuBLAS, updates of rows
#   attention  attention in one kernel; its time beside torch's flash attention
#   state      captured state, control flow
#   definitions  definitions in nvFuser's style: layouts, code, profiles, views
#   gradients  gradients, functions of jax.numpy
#   bench      the table against jax.jit and torch.compile
#   host       host time of a call on GPU arrays, beside both
#   sanitize   a sample under compute-sanitizer's memcheck and racecheck
#   modes      RoPE and softmax with static sizes, and symbolic in each resize mode
#   calls      host time and first calls on the CPU
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
status=0

run() {
    printf '\n== %s\n' "$*"
    "$@" || status=$?
}

tests() { run "$python" -m pytest -q --maxfail=20 -p no:cacheprovider -m gpu "$@"; }

# The tests by several processes, each a part of them; PROCESSES says how many.
shared() {
    local count=${PROCESSES:-$(($(nproc) < 12 ? $(nproc) : 12))} part outputs
    outputs=$(mktemp -d)
    local -a started=()
    for ((part = 0; part < count; ++part)); do
        (TRACEFUSE_TESTS_PART=$part/$count tests "$@" > "$outputs/$part" 2>&1; exit "$status") &
        started+=($!)
    done
    for ((part = 0; part < count; ++part)); do
        wait "${started[$part]}" || status=$?
        cat "$outputs/$part"
    done
    rm -rf "$outputs"
}

# A tool of compute-sanitizer over the sample; its status counts, and so does a summary that speaks of errors.
sanitized() {
    local sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
    if [ ! -x "$sanitizer" ]; then
        echo "no compute-sanitizer: it is not in PATH and not $sanitizer; COMPUTE_SANITIZER names another one" >&2
        return 1
    fi
    local said
    said=$(mktemp)
    "$sanitizer" --tool "$1" --error-exitcode 9 "$python" tests/gpu/sanitizer_sample.py "${SANITIZED_SECONDS:-60}" \
        2>&1 | tee "$said"
    local found=${PIPESTATUS[0]}
    grep -q 'SUMMARY: 0 \(errors\|hazards\)' "$said" || found=$((found ? found : 1))
    rm -f "$said"
    return "$found"
}

for selection in "${@:-all}"; do
    case "$selection" in
        kernels) tests tests/gpu/test_kernels_on_device.py tests/gpu/test_clusters_on_device.py ;;
        ops) shared tests/ops/test_op_results.py ;;
        random) tests tests/random_programs/test_random_fusions.py ;;
        functions) tests tests/whole_functions/test_templates.py ;;
        arrays)
            tests tests/gpu/test_arrays_on_device.py tests/gpu/test_foreign_buffers_on_device.py \
                tests/gpu/test_captured_state_on_device.py ;;
        memory)
            tests tests/gpu/test_memory_on_device.py tests/gpu/test_joined_launches_on_device.py \
                tests/gpu/test_replayed_calls_on_device.py tests/runtime/test_output_buffers_random.py ;;
        streams) tests tests/gpu/test_streams_on_device.py ;;
        graphs) tests tests/gpu/test_graphs_on_device.py ;;
        checking) tests tests/gpu/test_checking_on_device.py ;;
        products)
            tests tests/gpu/test_products_on_device.py tests/gpu/test_epilogues_on_device.py \
                tests/gpu/test_row_updates_on_device.py ;;
        attention)
            tests tests/gpu/test_attention_on_device.py
            run "$python" -m tests.bench.bench_attention
            ;;
        state) tests tests/gpu/test_captured_state_on_device.py tests/gpu/test_control_flow_on_device.py tests/gpu/test_selections_on_device.py ;;
        definitions) tests tests/gpu/test_definitions_on_device.py ;;
        gradients) tests tests/gpu/test_derivatives_on_device.py ;;
        bench) run "$python" tests/bench/bench_gpu.py --jax --torch ;;
        host) run "$python" tests/bench/bench_host.py ;;
        sanitize) for tool in memcheck racecheck; do run sanitized "$tool"; done ;;
        modes) run "$python" tests/bench/bench_modes.py --gpu ;;
        calls) run "$python" tests/bench/bench_calls.py ;;
        all)
            tests tests
            run "$python" tests/bench/bench_gpu.py --jax
            ;;
        *) echo "no selection $selection: $(sed -n 's/^#   \([a-z]*\) .*/\1/p' "$0" | tr '\n' ' ')all" >&2; exit 2 ;;
    esac
done
exit "$status"
