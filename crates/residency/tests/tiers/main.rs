//! Tiers over simulated GPUs, against a plain model that holds every byte.
//!
//! Random steps of several slices that promise more than the GPUs have and show each other bytes, in a pool with tiers
//! below it, with faults at random points: stores that fail, fill up, or return other bytes; copies that fail; GPUs that
//! are lost. After each step that is answered OK the bytes are the model's. Steps: 10,000 by default, a million with
//! `VRAM_LONG=1`, and then with another seed each time; the seed is printed, and taken from `VRAM_SEED` if that is set.

mod images;
mod model;
mod rig;
mod scenes;
mod shares;
mod sharing;

use model::{Mode, walk};

fn is_long() -> bool {
    std::env::var_os("VRAM_LONG").is_some()
}

fn steps(normal: u64) -> u64 {
    if is_long() { normal * 100 } else { normal }
}

/// The same every time, so that what fails is the last change; another each time for those who look for more.
fn seed() -> u64 {
    let chosen = std::env::var("VRAM_SEED").ok().and_then(|text| text.parse().ok());
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = chosen.unwrap_or_else(|| if is_long() { now() } else { 0x2545_f491_4f6c_dd1d });
    println!("VRAM_SEED={seed}");
    seed
}

#[test]
fn walk_without_faults_loses_no_byte_and_fails_nothing() {
    walk(seed(), steps(4000), Mode::Calm);
}

#[test]
fn walk_with_failing_stores_and_copies_loses_no_byte() {
    walk(seed(), steps(4000), Mode::Failing);
}

#[test]
fn walk_with_damage_and_lost_gpus_gives_no_wrong_byte() {
    walk(seed(), steps(2000), Mode::Losing);
}
