//! A `libnvidia-ml.so.1` that describes the GPUs of `vram-simcuda`, so that the real code that reads a host's topology
//! runs without one.
//!
//! It reads the same `VRAM_SIMCUDA_GPUS`. It knows what GPUs there are, where they sit, what their nearest common
//! ancestor is and which NVLinks join them, and nothing that changes over time: memory in use is always none, because
//! that is known to the process that uses it.
//!
//! A GPU has at most 18 links. Where the specification asks for more in all, the links go to a switch.

mod abi;
mod links;
mod nvml;
