//! Whole-daemon tests without a VM.
