//! Guest command line of vram.
fn main() {}
