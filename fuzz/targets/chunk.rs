//! Stored bytes of a chunk that somebody else wrote, or changed.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use vram_tier::testing::ForeignChunk;

thread_local! {
    static CHUNK: RefCell<ForeignChunk> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    CHUNK.with_borrow_mut(|chunk| {
        assert!(!chunk.decode(data), "bytes that were never stored pass for a chunk");
        assert!(chunk.damage(data), "changed bytes pass for the chunk, or unchanged ones do not");
    });
});
