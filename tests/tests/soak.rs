//! Several VMs at once, each doing random things for a while against a plain model of what its memory holds.

use std::time::{Duration, Instant};

use anyhow::Result;
use vram_tests::{RandomGuest, SliceSpec, TestDaemon};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(6);
const STEPS: u64 = 400;

#[test]
fn several_guests_at_random_each_see_their_own_bytes_only() -> Result<()> {
    let slices = [("a", 24 * MIB, 12 * MIB), ("b", 24 * MIB, 12 * MIB), ("c", 24 * MIB, 0)];
    live_side_by_side(&TestDaemon::start("3x16MiB,fresh=dirty", &slices)?, &slices)
}

#[test]
fn several_guests_at_random_with_more_than_the_gpus_hold_each_see_their_own_bytes_only() -> Result<()> {
    let slices = [("a", 32 * MIB, 4 * MIB), ("b", 32 * MIB, 0), ("c", 32 * MIB, 0)];
    let folder = tempfile::tempdir()?;
    let disk = format!("disk:128MiB,dir={}", folder.path().display());
    let daemon = TestDaemon::start_with_tiers("3x6MiB,fresh=dirty", &slices, &["host:16MiB", &disk])?;
    live_side_by_side(&daemon, &slices)?;
    let tiers = daemon.residency().tiers();
    for tier in &tiers {
        println!("{}: {} regions in, {} damaged", tier.kind, tier.meter.puts, tier.meter.corrupt);
        assert!(tier.meter.puts > 0 && tier.meter.corrupt == 0 && tier.meter.regions == 0);
    }
    assert_eq!(tiers.len(), 2);
    Ok(())
}

/// A guest in each slice for a while; afterwards everything is back.
fn live_side_by_side(daemon: &TestDaemon, slices: &[SliceSpec<'_>]) -> Result<()> {
    let deadline = Instant::now() + LONG;
    let lives: u64 = std::thread::scope(|scope| {
        let guests: Vec<_> = slices
            .iter()
            .zip(1u64..)
            .map(|((name, ..), seed)| {
                scope.spawn(move || -> Result<u64> {
                    let mut guest = RandomGuest::new(seed);
                    let mut lives = 0;
                    while Instant::now() < deadline {
                        // The whole VM goes and comes back.
                        guest.live(&mut daemon.driver(name)?, STEPS)?;
                        lives += 1;
                    }
                    Ok(lives)
                })
            })
            .collect();
        guests.into_iter().map(|guest| guest.join().expect("a guest's thread panicked")).sum::<Result<u64>>()
    })?;
    println!("{lives} lives of {STEPS} steps");
    daemon.expect_all_memory_back()?;
    let counts = daemon.sim.counts();
    assert_eq!((counts.shards, counts.mappings, counts.events), (0, 0, 0));
    assert!(daemon.residency().pool().verify().is_ok());
    Ok(())
}
