//! What eviction costs on access patterns, against what could be done: the bench's simulation, asserted.

#[path = "../benches/eviction/optimum.rs"]
mod optimum;
#[path = "../benches/eviction/simulation.rs"]
mod simulation;
#[path = "../benches/eviction/trace.rs"]
mod trace;
#[path = "../benches/eviction/yardsticks.rs"]
mod yardsticks;

use optimum::{Min, least_seconds};
use simulation::{ByHeat, Ledger, run};
use trace::{Access, MEMORY, Pattern, REGION_MIB, visits};
use vram_pool::HeatConfig;

/// GB/s.
const HOST: f64 = 20.0;

fn regions(percent: u32) -> u32 {
    MEMORY * percent / 100
}

fn by_heat(trace: &[Access], regions: u32) -> Ledger {
    run(&mut ByHeat::new(regions, HeatConfig::new(REGION_MIB << 20, 1 << 32)), trace, regions)
}

fn belady(trace: &[Access], regions: u32) -> Ledger {
    let visits = visits(trace);
    run(&mut Min::new(&visits, regions, true), &visits, regions)
}

/// Throughput by Belady's misses at the tier's raw speed, and the part of it that is reached.
fn part_of_belady(pattern: Pattern, percent: u32) -> f64 {
    let trace = pattern.trace(regions(percent));
    let reached = by_heat(&trace, regions(percent)).seconds(HOST);
    belady(&trace, regions(percent)).seconds_of_misses(HOST) / reached
}

#[test]
fn set_below_memory_misses_nothing() {
    for pattern in Pattern::ALL {
        for percent in [50, 90] {
            let ledger = by_heat(&pattern.trace(regions(percent)), regions(percent));
            assert_eq!(ledger.missed_mib, 0, "{} at {percent}%", pattern.name());
            assert_eq!(ledger.promotions, 0);
            assert!((ledger.throughput(HOST) - simulation::HOST_LINK).abs() < 1e-6);
        }
    }
}

#[test]
fn cycle_beyond_memory_misses_as_often_as_belady() {
    for percent in [110, 150, 200, 400] {
        let trace = Pattern::Cycle.trace(regions(percent));
        let ledger = by_heat(&trace, regions(percent));
        assert_eq!(ledger.promotions, 0, "at {percent}%");
        assert_eq!(ledger.missed_mib, belady(&trace, regions(percent)).missed_mib, "at {percent}%");
    }
}

#[test]
fn cycle_beyond_memory_is_the_least_possible_and_lru_is_not() {
    let regions = regions(150);
    let trace = Pattern::Cycle.trace(regions);
    let least = least_seconds(&visits(&trace), regions, HOST);
    let lru = |bypassing| {
        let (name, mut policy) = yardsticks::all(regions, bypassing).swap_remove(0);
        assert_eq!(name, "LRU");
        run(policy.as_mut(), &trace, regions)
    };

    assert!((by_heat(&trace, regions).seconds(HOST) / least - 1.0).abs() < 1e-6);
    assert!(least / lru(false).seconds(HOST) < 0.5);
    assert!(least / lru(true).seconds(HOST) < 0.8);
}

#[test]
fn scan_over_a_hot_set_changes_each_place_once_at_most() {
    let regions = regions(200);
    let trace = Pattern::HotAndScan.trace(regions);
    let ledger = by_heat(&trace, regions);
    // The hot set comes for half of what was there and never used, the first scan for the rest; then nothing moves.
    assert!(ledger.promotions <= u64::from(MEMORY), "{ledger:?}");
    assert!(ledger.misses() < 1.1 * belady(&trace, regions).misses());
}

#[test]
fn promotions_never_outgrow_what_was_asked_of_the_tier() {
    let config = HeatConfig::new(REGION_MIB << 20, 1);
    for pattern in Pattern::ALL {
        for percent in [110, 150, 200] {
            let trace = pattern.trace(regions(percent));
            let ledger = by_heat(&trace, regions(percent));
            let access_cost = 1.0 + config.access_bytes as f64 / f64::from(1 << 20);
            let most = ledger.misses() * access_cost / config.margin_moves;
            // Each place can change hands for little once at the start, and every 22 fills.
            let unused = 3.0 * f64::from(MEMORY);
            assert!(
                ledger.promotions as f64 <= most + unused,
                "{} at {percent}%: {ledger:?}",
                pattern.name()
            );
        }
    }
}

#[test]
fn dead_bytes_leave_for_a_cycle_three_times_the_memory() {
    let mut trace: Vec<Access> =
        (0..MEMORY).map(|region| Access { region, mib: REGION_MIB, write: true }).collect();
    let cycle = (MEMORY..4 * MEMORY).map(|region| Access { region, mib: REGION_MIB, write: false });
    (0..20).for_each(|_| trace.extend(cycle.clone()));
    let ledger = by_heat(&trace, 4 * MEMORY);
    // Dead for 22 fills, which is less than half of it; then a third of the cycle hits, and nothing moves any more.
    assert_eq!((ledger.promotions, ledger.written_back), (u64::from(MEMORY), u64::from(MEMORY)));
    assert!(ledger.hit_mib > 9 * u64::from(MEMORY) * REGION_MIB, "{ledger:?}");
}

#[test]
fn spill_curve_keeps_most_of_what_belady_would_have() {
    let floors = [
        (Pattern::Cycle, [1.0, 1.0, 1.0]),
        (Pattern::HotAndScan, [0.98, 0.95, 0.95]),
        (Pattern::ZipfWhole, [0.96, 0.88, 0.85]),
        (Pattern::ZipfPart, [0.95, 0.87, 0.84]),
        (Pattern::Phases, [0.93, 0.92, 0.77]),
        (Pattern::Model, [1.0, 0.98, 0.99]),
    ];
    for (pattern, floors) in floors {
        for (percent, floor) in [110, 150, 200].into_iter().zip(floors) {
            let part = part_of_belady(pattern, percent);
            assert!(part >= floor - 1e-3, "{} at {percent}%: {part:.3} of Belady", pattern.name());
        }
    }
}

#[test]
fn uniform_beyond_memory_is_near_what_any_policy_without_foresight_can_reach() {
    for (pattern, floor) in [(Pattern::UniformWhole, 0.91), (Pattern::UniformPart, 0.995)] {
        for percent in [110, 150, 200] {
            let regions = regions(percent);
            let trace = pattern.trace(regions);
            // Whatever is resident, the next access hits it with this probability.
            let hits = f64::from(MEMORY) / f64::from(regions);
            let most = 1.0 / (hits / simulation::HOST_LINK + (1.0 - hits) / HOST);
            let part = by_heat(&trace, regions).throughput(HOST) / most;
            assert!(part >= floor, "{} at {percent}%: {part:.3} of the bound", pattern.name());
        }
    }
}

#[test]
fn phases_new_hot_set_displaces_the_old() {
    let regions = regions(150);
    let trace = Pattern::Phases.trace(regions);
    let ledger = by_heat(&trace, regions);
    // Four hot sets follow each other, with nine in ten accesses each.
    let hits = ledger.hit_mib as f64 / (ledger.hit_mib + ledger.missed_mib) as f64;
    assert!(hits > 0.94, "{hits:.3}");
}
