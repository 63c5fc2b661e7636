//! vramctl.
fn main() {}
