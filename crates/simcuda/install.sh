#!/bin/sh
# Builds the simulated CUDA driver and puts it into a folder under the names programs ask for:
#
#   crates/simcuda/install.sh DIR
#   LD_LIBRARY_PATH=DIR VRAM_SIMCUDA_GPUS=4x256MiB some-program
#
# Both libcuda names must lie in the same folder: cudarc looks for libcuda.so in every folder before it looks for
# libcuda.so.1 in any.
set -eu

folder=${1:?"say where: install.sh DIR"}
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
cargo build --quiet --package vram-simcuda --package vram-simnvml
built=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug
cd - > /dev/null
mkdir -p "$folder"
install -m 755 "$built/libvram_simcuda.so" "$folder/libcuda.so.1"
install -m 755 "$built/libvram_simcuda.so" "$folder/libcuda.so"
install -m 755 "$built/libvram_simnvml.so" "$folder/libnvidia-ml.so.1"
