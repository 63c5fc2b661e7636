//! The backend contract on simulated GPUs.

use std::sync::Arc;

use vram_gpu::GpuId;
use vram_gpu_contract::{Case, Injection, Rig};
use vram_gpu_sim::{Counts, Faults, SimBackend, SimConfig};

struct SimInjection(Faults);

impl Injection for SimInjection {
    fn pause(&self, gpu: GpuId) {
        self.0.pause(gpu);
    }
    fn resume(&self, gpu: GpuId) {
        self.0.resume(gpu);
    }
    fn fail_next_copy(&self) {
        self.0.fail_copy(1);
    }
}

/// Every kind of simulated host passes, and everything taken is given back.
fn run(_name: &str, case: Case) {
    for spec in ["3x64MiB", "2x96MiB,peers=none,fresh=dirty,links=sys", "1x64MiB"] {
        let backend = Arc::new(SimBackend::new(SimConfig::parse(spec).unwrap()).unwrap());
        let injection = Box::new(SimInjection(backend.faults()));
        case(&Rig::with_injection(backend.clone(), injection));
        assert_eq!(backend.counts(), Counts::default(), "{spec}");
    }
}

vram_gpu_contract::contract_tests!(run);
