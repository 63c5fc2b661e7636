//! The vram daemon.
fn main() {}
