//! The 64 bytes at the head of every chain.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vram_protocol::{QueueKind, REQUEST_BYTES, Request};

fuzz_target!(|data: &[u8]| {
    let Some(bytes) = data.first_chunk::<REQUEST_BYTES>() else { return };
    for queue in [QueueKind::Control, QueueKind::Event, QueueKind::Request] {
        match Request::decode(bytes, queue) {
            Ok((header, request)) => {
                assert_eq!(request.opcode().queue(), queue);
                assert_eq!(request.encode(header), *bytes, "what decodes encodes to the same bytes");
            }
            Err(error) => assert_eq!(error.tag.to_le_bytes(), bytes[8..16]),
        }
    }
});
