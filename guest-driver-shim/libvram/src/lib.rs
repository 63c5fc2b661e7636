//! Guest user library of vram.
