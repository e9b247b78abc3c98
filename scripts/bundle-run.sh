#!/usr/bin/env bash
# Runs a bundle made by scripts/bundle.sh on a GPU machine.
# usage: run.sh test [NAME...] | bench [NAME...] | exhaustive | hunt [SECONDS] | soak | sanitize [TOOL...] | nvrtc [NAME...] | portable | all | where
# results under $OUT (default: ./out); where: prints the folder that holds the program and the executables
# The archive is unpacked once: into $UNPACK, else beside itself, and where others may write there into a fresh folder that is
# removed at the end (not after `where`). What lies there is run, so nobody else may put it there.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { echo "usage: run.sh test [NAME...] | bench [NAME...] | exhaustive | hunt [SECONDS] | soak | sanitize [TOOL...] | nvrtc [NAME...] | portable | all | where"; }
what=${1:-all}; shift || true
case $what in
    test | bench | exhaustive | hunt | soak | sanitize | nvrtc | portable | all | where) ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
esac
fresh=
logs=$(mktemp -d)
trap 'rm -rf "$logs" ${fresh:+"$fresh"}' EXIT
if [ ! -d "$here/tests" ]; then
    archive=$here/bundle.tar.xz
    [ -f "$archive" ] || { echo "$archive is not there: this script runs beside the bundle.tar.xz that scripts/bundle.sh DIR makes, as DIR/run.sh" >&2; exit 2; }
    ours() { [ -d "$1" ] && [ -O "$1" ] && [ -w "$1" ] && [ -z "$(find "$1" -maxdepth 0 -perm /022)" ]; }
    if [ -n "${UNPACK:-}" ]; then
        mkdir -p -m 700 "$UNPACK"
        ours "$UNPACK" || { echo "UNPACK=$UNPACK: must be a folder of yours in which nobody else may write" >&2; exit 2; }
        into=$UNPACK
    elif ours "$here"; then
        into=$here
    else
        into=$(mktemp -d) || exit 2
        [ "$what" = where ] || fresh=$into
    fi
    here=$into/unpacked-$(cksum <"$archive" | tr ' ' -)
    if [ ! -d "$here" ]; then
        new=$(mktemp -d "$into/unpacking-XXXXXX") || exit 2
        tar -xJf "$archive" -C "$new" 2>/dev/null ||
            python3 -m tarfile -e "$archive" "$new" ||
            { rm -rf "$new"; echo "unpacking $archive needs tar with xz, or python3" >&2; exit 2; }
        mv "$new" "$here"
    fi
fi
out=${OUT:-$PWD/out}
mkdir -p "$out"
export SCALED_GEMM_REQUIRE_GPU=1 SCALED_GEMM_CACHE=${SCALED_GEMM_CACHE:-$here/kernel-cache}
export SCALED_GEMM_COMMIT="$(cat "$here/commit" 2>/dev/null | tr '\n' ' ')"
failed=0
# Tests of these compare times, or ask how much memory the GPU has free: nothing runs beside them.
alone='gpu_tune cli_gpu gpu_memory'
# Suites whose kernels NVRTC compiles under `nvrtc`.
compiled='gpu_quantize gpu_grouped gpu_cast gpu_cast_back gpu_cast_shapes gpu_cast_floors gpu_amax gpu_producers gpu_producer_shapes gpu_produced_targets gpu_fused gpu_nvfp4 gpu_nvfp4_rows gpu_mxfp8 gpu_mxfp4 gpu_linear
    gpu_sm90 gpu_sm90_epilogue gpu_sm90_e5m2 gpu_fused_gemm gpu_experts gpu_grouped_plan gpu_grouped_cublaslt gpu_experts_rows gpu_experts_levels gpu_experts_gradient gpu_small_m gpu_small_m_e2m1 gpu_small_m_e4m3 gpu_small_m_gated gpu_small_m_groups gpu_small_m_wgmma gpu_small_m_splits gpu_repacked'
run_suite() { # name: one suite, with its words in a log, and how it ended beside that
    local threads=${TEST_THREADS:-4} begin=$SECONDS status=0
    case " $alone " in *" $1 "*) threads=1 ;; esac
    # The tests read files relative to the package. What those that pass say is shown, too: that they skipped what they are for.
    (cd "$here" && exec "tests/$1" --test-threads="$threads" --show-output) >"$logs/$1.log" 2>&1 || status=$?
    # Whole when it is there.
    echo "$status $((SECONDS - begin))" >"$logs/$1.ending"
    mv "$logs/$1.ending" "$logs/$1.ended"
}
skipped_tests() { # log: how many tests said that they skipped something
    grep -E '^---- .* stdout ----$|^skipped' "$1" | sed 's/^skipped.*/skipped/' | uniq | grep -c '^skipped'
}
say_ended() { # names: how those ended of which it was not said yet
    local name status seconds skipped
    for name in "$@"; do
        [ -f "$logs/$name.ended" ] || continue
        read -r status seconds <"$logs/$name.ended"
        mv "$logs/$name.ended" "$logs/$name.said"
        if [ "$status" = 0 ]; then
            skipped=$(skipped_tests "$logs/$name.log")
            [ "$skipped" = 0 ] && skipped= || skipped="; $skipped of these skipped something"
            echo "ok      $name: $(grep -h '^test result' "$logs/$name.log" | tail -1)$skipped ($seconds s)"
        else
            echo "FAILED  $name (exit status $status, $seconds s)"
            grep -E 'panicked|FAILED|ERROR SUMMARY|must be|skipped|No such file' -A2 "$logs/$name.log" | tail -40
            failed=1
        fi
        cat "$logs/$name.log" >>"$out/tests.txt"
    done
}
run_tests() { # names, or none: all. TEST_JOBS suites side by side, then one by one those that want the GPU alone
    local names=("$@") name
    [ ${#names[@]} -gt 0 ] || names=($(cd "$here/tests" && ls))
    rm -f "$logs"/*.said
    for name in "${names[@]}"; do
        case " $alone " in *" $name "*) continue ;; esac
        while [ "$(jobs -rp | wc -l)" -ge "${TEST_JOBS:-8}" ]; do
            wait -n
            say_ended "${names[@]}"
        done
        run_suite "$name" &
    done
    while [ "$(jobs -rp | wc -l)" -gt 0 ]; do
        wait -n
        say_ended "${names[@]}"
    done
    say_ended "${names[@]}"
    for name in "${names[@]}"; do
        case " $alone " in *" $name "*) run_suite "$name" && say_ended "$name" ;; esac
    done
    for name in "${names[@]}"; do
        [ -f "$logs/$name.said" ] || { echo "FAILED  $name: nobody knows how it ended"; failed=1; }
    done
}
hunt() { # seconds: eight processes that launch products at once and compare bits
    local process found
    for process in 1 2 3 4 5 6 7 8; do
        (cd "$here" && SCALED_GEMM_HUNT=$1 exec tests/gpu_batch_invariant --ignored --nocapture many_launches) >"$logs/hunt-$process.log" 2>&1 &
    done
    wait
    for process in 1 2 3 4 5 6 7 8; do
        found=$(grep -hE 'launches|panicked' -A2 "$logs/hunt-$process.log" | tail -4)
        if grep -q '^test result: ok. 1 passed' "$logs/hunt-$process.log"; then echo "ok      hunt $process: $found"; else echo "FAILED  hunt $process: $found"; failed=1; fi
    done
    cat "$logs"/hunt-*.log >>"$out/hunt.txt"
}
soak() { # tests that are ignored because they take long or compare times, one after the other: a suite and a test each
    local suite name log
    while read -r suite name; do
        log=$logs/soak-$name.log
        (cd "$here" && exec "tests/$suite" --ignored --nocapture "$name") >"$log" 2>&1
        # A name that no test has passes, too.
        if grep -q '^test result: ok. 1 passed' "$log"; then echo "ok      $suite $name"; else echo "FAILED  $suite $name"; failed=1; fi
        grep -E 'calls of|one expert of|panicked|skipped|No such file' -A2 "$log" | head -20
        cat "$log" >>"$out/soak.txt"
    done <<'TESTS'
gpu_sm90 a_million_calls
gpu_idle_experts groups_without_rows_take_no_time
TESTS
}
run_benches() {
    local names=("$@")
    [ ${#names[@]} -gt 0 ] || names=($(cd "$here/benches" && ls | grep -v '^cpu$'))
    for name in "${names[@]}"; do
        export SCALED_GEMM_COMMAND="run.sh bench $name"
        "$here/benches/$name" --bench 2>&1 | tee "$out/bench-$name.md" || failed=1
    done
}
case $what in
    test) run_tests "$@" ;;
    bench) run_benches "$@" ;;
    exhaustive) SCALED_GEMM_EXHAUSTIVE=1 run_tests gpu_e2m1 ;;
    hunt) hunt "${1:-30}" ;;
    soak) soak ;;
    portable)
        # Kernels and plans of older GPUs on this one: NVRTC compiles the kernels. Those of 89 convert FP8 by instructions.
        echo "## SCALED_GEMM_SM=80"; SCALED_GEMM_SM=80 run_tests gpu_small_m_e2m1 gpu_small_m_e4m3 gpu_cast gpu_cast_shapes gpu_mxfp4
        echo "## SCALED_GEMM_SM=89"; SCALED_GEMM_SM=89 run_tests gpu_small_m_e2m1 gpu_small_m_e4m3 ;;
    nvrtc)
        [ $# -gt 0 ] || set -- $compiled
        SCALED_GEMM_KERNELS=nvrtc run_tests "$@" ;;
    sanitize)
        # memcheck must be clean for every kernel. The other tools know nothing of the barriers in cuBLASLt's kernels and
        # report them: there, lines that name one of ours count. The suites that cross everything would take hours under
        # them, so these run the tests that reach each kernel.
        ours='at (gemm_fp8_|gemm_e5m2_|gemm_e4m3_|gemm_small_m_|gemm_grouped_arrays|plan_grouped|clear_grouped_amax|clear_between|count_clamped|spread_over|bias_|add_bias_|delayed_update|to_bf16|quantize_|dequantize_|cast_|rms_norm_|swiglu_|fp4_to_fp8|amax_|hadamard_|epilogue_|repeat_|repack_|unpack_|alpha_|gemm_factors)'
        # What racecheck reports of ours though it is no race, one kernel a line: its whole name, as an extended regular expression without spaces, and why. Any other report counts, and
        # a line that nothing is reported of any more is said, to be taken out. A race of these kernels is hidden here: run.sh hunt and the suites' bits look for it.
        known_races='gemm_(fp8|e5m2_e4m3|e4m3_e5m2)_(block|block_a|plain|vector|vector_fp32)_[0-9]+x[0-9]+(_two|_k2)? one lane of a warp gives a stage back for all of them, whose reads are one instruction (give_back in sm90.cuh); racecheck counts each lane for itself (2026-11-26-nvidia-h100-sm90/README.md)
gemm_small_m_(gated_)?(block|outer)_[0-9]+_two parts of sums are written before a barrier of the block and read behind it (STS, BAR.SYNC 0, LDS in the machine code); other blocks with the same lines have no report (2026-11-26-nvidia-h200-experts/README.md)'
        known_names=$(cut -d' ' -f1 <<<"$known_races" | paste -sd'|' -)
        reported() { # tool, log: lines that name a kernel of ours, but for what racecheck is known to report
            local known='no kernel'
            [ "$1" != racecheck ] || known=$known_names
            # The names alone are taken out: a line that has another one, too, counts.
            grep -E '^=========' "$2" | sed -E "s/at ($known)\\b//g" | grep -E "$ours"
        }
        say_known() { # logs of racecheck: which known reports there are, and which there are no more
            local name why lines
            while read -r name why; do
                lines=$(cat "$@" | grep -E '^=========' | grep -cE "at ($name)\\b")
                if [ "$lines" -gt 0 ]; then
                    echo "known   $name: $lines lines: $why"
                else
                    echo "GONE    $name: no report any more: take it out of the known ones: $why"
                fi
            done <<<"$known_races"
        }
        sanitize() { # tool, suite, tests: one suite under one tool, with its words in a log
            local options=()
            # It asks the driver for addresses that hold no memory, and each such answer would count as an error of the program.
            case $1-$2 in memcheck-gpu_idle_experts) options=(--report-api-errors no) ;; esac
            (cd "$here" && timeout "${SANITIZE_SECONDS:-300}" compute-sanitizer --target-processes all --tool "$1" "${options[@]}" \
                "tests/$2" --test-threads 1 "${@:3}") >"$logs/$1-$2.log" 2>&1
            # What was killed may have tests in processes of their own that passed.
            [ $? != 124 ] || printf '\ntest result: FAILED. killed after %s s\n' "${SANITIZE_SECONDS:-300}" >>"$logs/$1-$2.log"
        }
        [ $# -gt 0 ] || set -- memcheck racecheck synccheck initcheck
        for tool in "$@"; do
            # A suite's name would be a tool under which every suite fails.
            case $tool in
                memcheck | racecheck | synccheck | initcheck) ;;
                *) echo "sanitize: $tool is no tool: give memcheck, racecheck, synccheck or initcheck" >&2; exit 2 ;;
            esac
        done
        for tool in "$@"; do
            echo "## compute-sanitizer --tool $tool"
            ran=()
            # All but three: gpu_cast_long takes matrices of 9 GiB through kernels of gpu_cast, gpu_e2m1 matrices of 256 MiB through kernels of gpu_nvfp4, and gpu_train_char trains for thousands of launches with those of gpu_linear.
            for name in gpu_epilogue gpu_quantize gpu_grouped gpu_cast gpu_cast_back gpu_cast_shapes gpu_cast_floors gpu_cast_captures gpu_cast_refusals gpu_amax gpu_producers gpu_producer_shapes gpu_produced_targets gpu_fused gpu_overlap gpu_nvfp4 gpu_nvfp4_rows gpu_mxfp8 gpu_mxfp4 gpu_linear gpu_sm90 gpu_sm90_epilogue gpu_sm90_e5m2 gpu_fused_gemm gpu_experts gpu_grouped_plan gpu_grouped_cublaslt gpu_experts_rows gpu_experts_levels gpu_experts_gradient gpu_small_m gpu_small_m_e2m1 gpu_small_m_e4m3 gpu_small_m_gated gpu_small_m_groups gpu_small_m_wgmma gpu_small_m_splits gpu_small_m_passes gpu_no_cublaslt gpu_repacked gpu_gemm gpu_gemm_block gpu_graph gpu_threads gpu_tune gpu_memory \
                gpu_plan gpu_kernels gpu_lifetimes gpu_captures gpu_owned_graphs gpu_foreign_captures gpu_chains gpu_batch_invariant gpu_quantize_a gpu_two_gpus gpu_idle_experts; do
                tests=()
                # These reach each kernel for block scales, aligned and not: small matrices, and one of many rows.
                case $name in
                    gpu_nvfp4 | gpu_mxfp8 | gpu_mxfp4) tests=(each_kernel_once dequantize refusals) ;;
                    gpu_repacked) tests=(each_kernel_once graphs dequantized refuses) ;;
                    gpu_grouped) tests=(each_kernel_once more_than_one any_numbers captured extreme refusals) ;;
                    gpu_sm90) tests=(each_kernel_once groups_are slots_hold no_sense refus) ;;
                    gpu_sm90_epilogue) tests=(each_kernel_once any_place groups_have) ;;
                    gpu_fused_gemm) tests=(each_kernel_once bad_input) ;;
                    gpu_sm90_e5m2) tests=(each_kernel_once groups_are) ;;
                    gpu_experts) tests=(slots_of_other_pairs gradients_of_experts other_handles_wait gradients_on transposes grouped_tensors) ;;
                    gpu_experts_levels) tests=(rows_of_experts members_of levels_that no_tile amax_of_groups levels_are_found) ;;
                    gpu_experts_gradient) tests=(starts_give gradients_in_e5m2 many_groups thousand_slots every_pair refused) ;;
                    # The others take large matrices, or thousands of launches.
                    gpu_cast_shapes) tests=(every_code sixteen_neighbours) ;;
                    gpu_producer_shapes) tests=(swiglu_to_every_recipe) ;;
                    # Its kernels are those of gpu_cast, gpu_producers and gpu_fused: other numbers go another way through them, in sources of each kind.
                    gpu_cast_floors) tests=(codes norms gradients) ;;
                    gpu_amax) tests=(of_codes rows_of_gradients whole_matrices members_of) ;;
                    gpu_small_m | gpu_small_m_e2m1 | gpu_small_m_e4m3) tests=(each_kernel_once not_a_number graphs refus) ;;
                    gpu_small_m_gated) tests=(each_kernel_once graphs refus) ;;
                    gpu_small_m_groups) tests=(each_kernel_once graphs refus any_numbers clusters_walk) ;;
                    gpu_small_m_passes) tests=(fp8_weights invariant) ;;
                    gpu_small_m_wgmma) tests=(what_explain) ;;
                    gpu_small_m_splits) tests=(each_kernel_once graphs refus) ;;
                    # Every kernel of a layer, and tokens that are no multiple of anything.
                    gpu_linear) tests=(each_kernel_once any_type scales_that_change no_tokens refused) ;;
                    gpu_cast) tests=(each_kernel_once many_rows large requantizing unaligned gathered given_scales refus) ;;
                    gpu_producers) tests=(each_kernel_once each_activation_once many_rows gathered refus) ;;
                    gpu_produced_targets) tests=(each_kernel_once each_activation_once gathered given_scale refus) ;;
                    gpu_fused) tests=(each_kernel_once norms gradients refus) ;;
                    # There the driver refuses a wait, as it should, which the tool counts as an error.
                    gpu_foreign_captures) tests=(--skip a_capture_that_its_closure_replaces --skip a_capture_that_cudarc_breaks) ;;
                    # Chains of hundreds of large layers, and products of thousands of rows, are for the suites themselves.
                    gpu_chains) tests=(each_link_once an_end_is weights_that) ;;
                    gpu_batch_invariant) tests=(what_stands what_is_not other_plans) ;;
                    gpu_quantize_a) tests=(each_scheme_once given_scales graphs_follow refused) ;;
                    # Under a tool the host's time is not what it is.
                    gpu_tune) tests=(--skip warm_times_are_those_of_the_device) ;;
                esac
                if [ "$tool" != memcheck ]; then
                    case $name in
                        gpu_quantize) tests=(strided given amax_of dequantize refusals one_launch) ;;
                        gpu_gemm) tests=(e4m3_output) ;;
                        gpu_grouped) tests=(each_kernel_once more_than_one any_numbers) ;;
                        gpu_epilogue | gpu_cast | gpu_cast_back | gpu_producers | gpu_produced_targets | gpu_fused | gpu_nvfp4 | gpu_mxfp8 | gpu_mxfp4) ;;
                        gpu_cast_shapes) tests=(every_code) ;;
                        gpu_producer_shapes) ;;
                        gpu_cast_captures) tests=(codes_rows_and_parts norms_and_gradients) ;;
                        # Long rows, which blocks share, and tiles.
                        gpu_amax) tests=(rows_of_gradients whole_matrices) ;;
                        gpu_linear) tests=(each_kernel_once scales_that_change) ;;
                        gpu_sm90 | gpu_sm90_e5m2) tests=(each_kernel_once groups_are) ;;
                        gpu_sm90_epilogue | gpu_fused_gemm | gpu_repacked) tests=(each_kernel_once) ;;
                        gpu_chains) tests=(each_link_once) ;;
                        gpu_batch_invariant) tests=(what_stands) ;;
                        gpu_quantize_a) tests=(each_scheme_once) ;;
                        gpu_experts_rows) tests=(between_groups) ;;
                        gpu_experts_levels) tests=(amax_of_groups) ;;
                        gpu_experts_gradient) tests=(starts_give gradients_in_e5m2) ;;
                        gpu_small_m | gpu_small_m_e2m1 | gpu_small_m_e4m3 | gpu_small_m_gated | gpu_small_m_splits) tests=(each_kernel_once) ;;
                        gpu_small_m_groups) tests=(each_kernel_once second_parts) ;;
                        gpu_small_m_wgmma) tests=(what_explain weights_that) ;;
                        gpu_grouped_cublaslt) tests=(any_numbers graphs) ;;
                        *) continue ;;
                    esac
                fi
                # It slows kernels a hundredfold: large matrices would take all of its time.
                case $tool-$name in racecheck-gpu_grouped) tests=(each_kernel_once more_than_one) ;; esac
                case $tool-$name in
                    racecheck-gpu_cast | racecheck-gpu_fused) tests=(each_kernel_once) ;;
                    racecheck-gpu_cast_back) tests=(back fp4_to_fp8_counts) ;;
                    racecheck-gpu_producers | racecheck-gpu_produced_targets) tests=(each_kernel_once each_activation_once) ;;
                    # Its kernels are those of gpu_producers.
                    racecheck-gpu_producer_shapes) continue ;;
                esac
                ran+=("$name")
                # This one asks how much memory the GPU has free, and runs when the others have ended.
                [ "$name" != gpu_memory ] || continue
                # The tools keep the host busy, not the GPU.
                while [ "$(jobs -rp | wc -l)" -ge "${SANITIZE_JOBS:-6}" ]; do wait -n; done
                sanitize "$tool" "$name" "${tests[@]}" &
            done
            wait
            [ "$tool" != memcheck ] || sanitize memcheck gpu_memory
            for name in "${ran[@]}"; do
                log=$logs/$tool-$name.log
                bad=0
                # A test in a process of its own has a summary of its own, in which nothing is named of the others.
                grep -qE '^test result: ok\. [1-9]' "$log" || bad=1
                ! grep -q '^test result: FAILED' "$log" || bad=1
                if [ "$tool" = memcheck ] && { ! grep -q 'ERROR SUMMARY' "$log" || grep 'ERROR SUMMARY' "$log" | grep -qv ': 0 errors'; }; then bad=1; fi
                reported "$tool" "$log" >"$log.reported" && bad=1
                if [ $bad = 1 ]; then
                    echo "FAILED  $name"; failed=1
                    # What counts comes first: known reports can be thousands of lines.
                    { cat "$log.reported"; grep -E '^========= (Error|Invalid)|panicked' "$log"; } | head -20
                fi
                echo "$tool $name: $(grep -hE 'SUMMARY|^test result' "$log" | sort | uniq -c | tr '\n' ' ')"
            done
            [ "$tool" != racecheck ] || say_known "$logs"/racecheck-*.log
        done ;;
    where) echo "$here" ;;
    all) run_tests; SCALED_GEMM_KERNELS=nvrtc run_tests $compiled; run_benches ;;
esac
exit $failed
