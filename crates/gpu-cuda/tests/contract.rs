//! The backend contract on the CUDA backend: over the simulated driver, or, with `VRAM_CONTRACT_REAL_CUDA=1`, over
//! whatever driver this host has.
//!
//! The loader decides at a program's start where `libcuda.so.1` comes from, so each test starts this program once
//! more, for that test alone, with the folder of the simulated driver first.

mod driver;

use vram_gpu_contract::{Case, Rig};
use vram_gpu_cuda::CudaBackend;

use crate::driver::{Host, SimulatedFaults, on_each};

const SIMULATED: [Host; 3] = [
    Host { name: "three GPUs", specification: "3x64MiB" },
    Host { name: "no peers", specification: "2x96MiB,peers=none,fresh=dirty,links=sys" },
    Host { name: "one GPU", specification: "1x64MiB" },
];

fn run(name: &str, case: Case) {
    on_each(&SIMULATED, name, |is_real| {
        let backend = std::sync::Arc::new(CudaBackend::new().unwrap());
        let rig = if is_real {
            Rig::new(backend)
        } else {
            Rig::with_injection(backend, Box::new(SimulatedFaults::load()))
        };
        case(&rig);
    });
}

vram_gpu_contract::contract_tests!(run);
