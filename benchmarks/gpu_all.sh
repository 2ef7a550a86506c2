#!/usr/bin/env bash
# What one machine with a GPU does with each stage, within some minutes; docs/gpu-design.md lists the parts.
#
#   bash benchmarks/gpu_all.sh --output DIR [--wheels FOLDER] [--budget SECONDS] [--device cpu] [--tiny] [PART...]
#
# Each part (all by default, in the order of benchmarks/gpu_parts.py) is one process with a time limit: what fails, or
# cannot be imported, does not end the rest. DIR receives gpu.jsonl (a line for each result), log.txt, tests.txt,
# table.txt, and where there is a GPU machine.txt and dmon.txt, its utilisation each second. --wheels names a folder of
# wheels of modules that this machine lacks. The exit code is 1 without the device or with wrong options, else 0.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
output="" wheels="" budget=470 device=cuda tiny="" parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --output | --wheels | --budget | --device) [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 1; } ;;&
        --output) output=$2; shift ;;
        --wheels) wheels=$2; shift ;;
        --budget) budget=$2; shift ;;
        --device) device=$2; shift ;;
        --tiny) tiny=--tiny ;;
        -*) echo "unknown option $1; see the head of $0" >&2; exit 1 ;;
        *) parts+=("$1") ;;
    esac
    shift
done
[ -n "$output" ] || { echo "name a folder for the results: --output DIR" >&2; exit 1; }
mkdir -p "$output" && output=$(cd "$output" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"; [ -z "$monitor" ] || kill "$monitor"' EXIT
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TMPDIR="$work"
install() {
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" "$@" \
        >>"$output/log.txt" 2>&1
}
if [ -n "$wheels" ]; then
    install "$wheels"/*.whl || for wheel in "$wheels"/*.whl; do
        install "$wheel" || echo "cannot install $wheel; see $output/log.txt" >&2
    done
    export PYTHONPATH="$work/site:$PYTHONPATH"
fi
gpu_parts() { python3 "$root/benchmarks/gpu_parts.py" "$@" --output "$output" --device "$device" $tiny; }
note() { printf '{"part": "%s", %s}\n' "$1" "$2" >>"$output/gpu.jsonl"; }

listed=$(gpu_parts list "${parts[@]}") || exit 1
if [ "$device" != cpu ] && command -v nvidia-smi >/dev/null; then
    { nvidia-smi -q; lscpu; df -h; python3 -m pip list; } >"$output/machine.txt" 2>&1
    nvidia-smi dmon -s pucm -o T -d 1 >"$output/dmon.txt" 2>&1 &
    monitor=$!
fi
while read -r name seconds <&3; do
    if [ $((SECONDS + seconds)) -gt "$budget" ]; then
        note "$name" '"name": "all of it", "skipped": "no time was left of the budget"'
        continue
    fi
    begun=$SECONDS
    echo "=== $name" >>"$output/log.txt"
    ( export TMPDIR="$work/$name" && mkdir "$TMPDIR" && cd "$TMPDIR" &&
        timeout -k 5 "$seconds" python3 "$root/benchmarks/gpu_parts.py" run "$name" --output "$output" \
            --device "$device" $tiny ) </dev/null >>"$output/log.txt" 2>&1
    note "$name" "\"name\": \"ended\", \"rc\": $?, \"seconds\": $((SECONDS - begun)), \"at\": \"$(date +%T)\""
    rm -rf "${work:?}/$name"
done 3<<<"$listed"
gpu_parts table | tee "$output/table.txt"
exit 0
