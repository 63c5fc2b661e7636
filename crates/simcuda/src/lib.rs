//! A `libcuda.so.1` over simulated GPUs, so that the real CUDA path runs on a host without one.
//!
//! It has the driver API functions a memory client needs, with their documented names, layouts and error codes, on
//! top of [`vram_gpu_sim`]. It never pretends to be hardware: device names begin with
//! [`vram_gpu_sim::SIMULATED_NAME_PREFIX`], and the extra function `vramSimulatedDriver` is there to ask for.
//!
//! `VRAM_SIMCUDA_GPUS` says which GPUs there are, in the words of [`vram_gpu_sim::SimConfig::parse`]: `4x256MiB`.
//! Without it there are none, and `cuInit` says so on standard error. `install.sh` beside this crate puts the library
//! where `LD_LIBRARY_PATH` can point.
//!
//! It behaves as the driver API documents, also where that is unpleasant: work on a stream is asynchronous, copies of
//! pageable memory are not, a call without a current context fails, a host range that is partly registered is
//! invalid. Kinder than a GPU in one way: a failed copy is reported once instead of ending the context; only a lost
//! GPU (`lose-gpu`, `vramSimLoseGpu`) fails every call from then on.
//!
//! What it does not do: run kernels, load modules, graphs, arrays, managed memory, memory pools.

mod abi;
mod context;
mod copy;
mod device;
mod driver;
mod event;
mod host;
mod inject;
mod memory;
mod proc_address;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod vmm;
