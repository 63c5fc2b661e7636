//! What operators and tests write: sizes, and the description of simulated GPUs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vram_control_api::ByteSize;
use vram_gpu_sim::SimConfig;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(format!("{size:#}").parse(), Ok(size), "an exact size reads back");
    }
    // A file of links is named by its path; this must not open whatever the fuzzer thinks of.
    if !text.contains("topology") {
        let _ = SimConfig::parse(text);
    }
});
