#!/usr/bin/env bash
# Measures within eight minutes how well the pipeline uses this machine's GPU. gpu_verdict.py lists the parts.
#
#   bash benchmarks/gpu_all.sh --output DIR [--wheels FOLDER] [--budget SECONDS] [--device cpu] [--tiny]
#
# Three processes run the parts one after the other, and a fourth process runs the GPU tests meanwhile. A part that
# fails, hangs or lacks a module does not end the others. DIR receives gpu.jsonl (one line per result), table.txt,
# tests.txt, log.txt, machine.txt and dmon.txt. In gpu.jsonl, `floor` is the best possible value on this machine and
# `of_floor` the share of it that was reached. Networks have random weights, with which they are as fast as trained ones.
# The machine needs torch, torchvision, h5py, scikit-learn, pyarrow, click and pytest, and for all parts timm, OpenCV and
# pytest-xdist. --wheels names a folder with wheels of the other modules, for a machine without a network:
#   python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d wheels \
#     pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 typing-extensions==4.16.0 \
#     faiss-cpu==1.15.1 duckdb==2.0.1 nltk==3.10.4 filelock==4.3.1 safetensors==0.8.0 tqdm==4.70.1 pyyaml==6.0.4
# The exit code is 1 if the device is missing or an option is wrong, else 0.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
output="" wheels="" budget=470 device=cuda tiny=""
while [ $# -gt 0 ]; do
    case $1 in
        --output | --wheels | --budget | --device)
            [ $# -gt 1 ] || { echo "The option $1 needs a value. The head of $0 lists the options." >&2; exit 1; }
            printf -v "${1#--}" %s "$2" && shift ;;
        --tiny) tiny=--tiny ;;
        *) echo "The option $1 is unknown. The head of $0 lists the options." >&2; exit 1 ;;
    esac
    shift
done
[ -n "$output" ] || { echo "The folder for the results is missing. Add --output DIR." >&2; exit 1; }
mkdir -p "$output" && output=$(cd "$output" && pwd) && rm -f "$output/gpu.jsonl" && work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"; [ -z "$monitor" ] || kill "$monitor"' EXIT
export PYTHONPATH="$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TMPDIR="$work"
install() {
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" "$@" \
        >>"$output/log.txt" 2>&1
}
if [ -n "$wheels" ]; then
    install "$wheels"/*.whl || for wheel in "$wheels"/*.whl; do
        install "$wheel" || echo "The wheel $wheel cannot be installed. The reason is in $output/log.txt." >&2
    done
    export PYTHONPATH="$work/site:$PYTHONPATH"
fi
if [ "$device" != cpu ]; then
    python3 -c "import torch; torch.empty(0, device='$device')" 2>>"$output/log.txt" ||
        { echo "torch cannot use the device $device here. The reason is in $output/log.txt." >&2; exit 1; }
    { nvidia-smi -q; lscpu; df -h; python3 -m pip list; } >"$output/machine.txt" 2>&1
    stdbuf -oL nvidia-smi dmon -s pucm -o T -d 1 >"$output/dmon.txt" 2>&1 &
    monitor=$!
fi
cd "$work" || exit 1
for process in checks pixels networks; do
    # A process that ends early is started again with the parts that are left.
    for _ in 1 2 3 4 5 6; do
        [ $SECONDS -lt $((budget - 5)) ] || break
        timeout -k 5 $((budget - SECONDS)) python3 "$root/benchmarks/gpu_parts.py" "$process" --output "$output" \
            --device "$device" --seconds $((budget - SECONDS)) $tiny </dev/null >>"$output/log.txt" 2>&1 && break
    done
done
python3 "$root/benchmarks/gpu_verdict.py" "$output/gpu.jsonl" | tee "$output/table.txt"
