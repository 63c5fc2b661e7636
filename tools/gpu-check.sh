#!/usr/bin/env bash
# Checks vram on a machine with a real NVIDIA GPU: the contract suite of the GPU trait over the real driver, then
# bandwidth through the daemon's own path against raw copies, in one run. Under 8 minutes. See docs/gpu-check.md.
#
#   tools/gpu-check.sh [OUTPUT-FOLDER]     default: target/gpu-check
#
# Exits 0 if everything held, 1 if something did not, 3 if there is no usable GPU (nothing was checked).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/gpu-check}
mkdir -p "$out"
report=$out/report.txt
: >"$report"

say() { printf '%s\n' "$*" | tee -a "$report"; }

say "vram gpu-check, $(date -u +%Y-%m-%dT%H:%MZ), revision $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
say "host: $(uname -sr), $(nproc) CPUs"
if command -v nvidia-smi >/dev/null 2>&1; then
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current \
        --format=csv | tee -a "$report"
    nvidia-smi topo -m >"$out/topology.txt" 2>&1 || true
fi
# The loader's own list, and the folders it was told to look in first: over the simulated driver this script can be
# tried without a GPU, and the report then says that the GPUs are simulated.
find_driver() {
    local folder folders
    IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
    for folder in "${folders[@]}"; do [ -e "$folder/libcuda.so.1" ] && return 0; done
    ldconfig -p | grep -q 'libcuda\.so\.1'
}
if ! find_driver; then
    say "no usable GPU: libcuda.so.1 is not installed. Nothing was checked."
    exit 3
fi

# Built before the clock runs: how long that takes is no property of the GPU.
cargo test --release -p vram-gpu-cuda --test contract --no-run >"$out/build.log" 2>&1
cargo bench -p vram-tests --bench bandwidth --no-run >>"$out/build.log" 2>&1

failed=0
say ""
say "== contract suite over the real driver"
if VRAM_CONTRACT_REAL_CUDA=1 timeout 240 cargo test --release -p vram-gpu-cuda --test contract -- --nocapture \
    >"$out/contract.log" 2>&1; then
    grep -E '^test result' "$out/contract.log" | tee -a "$report"
else
    failed=1
    say "FAILED, see $out/contract.log"
    grep -E '^test .*FAILED|panicked|^test result' "$out/contract.log" | head -40 | tee -a "$report"
fi

say ""
say "== bandwidth through vramd's path against raw registered copies"
if timeout 180 cargo bench -q -p vram-tests --bench bandwidth -- --gpu cuda --mib 4096 >"$out/bandwidth.txt" 2>"$out/bandwidth.log"; then
    tee -a "$report" <"$out/bandwidth.txt"
else
    failed=1
    say "FAILED, see $out/bandwidth.log"
    tail -20 "$out/bandwidth.log" | tee -a "$report"
fi

say ""
if [ "$failed" = 0 ]; then say "gpu-check: passed"; else say "gpu-check: FAILED"; fi
exit "$failed"
