//! What eviction policies make of access patterns: `cargo bench -p vram-pool --bench eviction`.
//!
//! 64 regions of 64 MiB of GPU memory in front of a tier that holds all regions. First the pool's own policy in
//! numbers, at working sets from half the memory to twice; then all policies, by the part of the throughput that is
//! reached which somebody could reach who knows all accesses and writes back for nothing.

use std::time::Instant;

use vram_pool::{AccessKind, Heat, HeatConfig, PoolTime, RegionIndex, Residence, TierCopy};

use optimum::{Min, least_seconds};
use simulation::{ByHeat, Ledger, run};
use trace::{Access, MEMORY, Pattern, REGION_MIB, Random, visits};

mod optimum;
mod simulation;
mod trace;
mod yardsticks;

/// GB/s of the tiers.
const HOST: f64 = 20.0;
const DISK: f64 = 2.0;

fn regions(percent: u32) -> u32 {
    MEMORY * percent / 100
}

fn by_heat(trace: &[Access], regions: u32) -> Ledger {
    let config = HeatConfig::new(REGION_MIB << 20, 1 << 32);
    run(&mut ByHeat::new(regions, config), trace, regions)
}

/// The least seconds, by tier.
fn optimum(trace: &[Access], regions: u32) -> [f64; 2] {
    [HOST, DISK].map(|tier| least_seconds(&visits(trace), regions, tier))
}

fn print_heat() {
    println!(
        "heat                               misses, promotions,      GB/s        of Belady      of optimum"
    );
    println!(
        "pattern       set  Belady's misses write-backs            host  disk    host  disk     host  disk"
    );
    for pattern in Pattern::ALL {
        for percent in [50, 90, 110, 150, 200] {
            let regions = regions(percent);
            let trace = pattern.trace(regions);
            let visits = visits(&trace);
            let min = run(&mut Min::new(&visits, regions, true), &visits, regions);
            let heat = by_heat(&trace, regions);
            let best = optimum(&trace, regions);
            let of_belady = [HOST, DISK].map(|tier| min.seconds_of_misses(tier) / heat.seconds(tier));
            println!(
                "{:<12} {percent:>3}% {:>7.0} {:>7.0} {:>5} {:>5} {:>15.1} {:>5.1} {:>7.2} {:>5.2} {:>8.2} {:>5.2}",
                pattern.name(),
                min.misses(),
                heat.misses(),
                heat.promotions,
                heat.written_back,
                heat.throughput(HOST),
                heat.throughput(DISK),
                of_belady[0],
                of_belady[1],
                best[0] / heat.seconds(HOST),
                best[1] / heat.seconds(DISK),
            );
        }
    }
}

/// One line a policy, one column a pattern.
fn print_all(percent: u32) {
    let regions = regions(percent);
    let mut lines: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
    for pattern in Pattern::ALL {
        let trace = pattern.trace(regions);
        let best = optimum(&trace, regions);
        let mut note = |name: String, ledger: Ledger| {
            let reached = [best[0] / ledger.seconds(HOST), best[1] / ledger.seconds(DISK)];
            match lines.iter_mut().find(|(line, _)| *line == name) {
                Some((_, columns)) => columns.push(reached),
                None => lines.push((name, vec![reached])),
            }
        };
        for (bypassing, suffix) in [(false, ""), (true, " + bypass")] {
            for (name, mut policy) in yardsticks::all(regions, bypassing) {
                note(format!("{name}{suffix}"), run(policy.as_mut(), &trace, regions));
            }
        }
        note("Belady's MIN".to_owned(), run(&mut Min::new(&trace, regions, false), &trace, regions));
        note("heat".to_owned(), by_heat(&trace, regions));
    }
    for (tier, name) in ["host", "disk"].into_iter().enumerate() {
        print!("\n{:<22}", format!("{name}, set {percent}%"));
        Pattern::ALL.iter().for_each(|pattern| print!("{:>12}", pattern.name()));
        for (name, columns) in &lines {
            print!("\n{name:<22}");
            columns.iter().for_each(|reached| print!("{:>12.2}", reached[tier]));
        }
        println!();
    }
}

/// What the books cost, for a slice of all of eight GPUs and as much in tiers.
fn print_costs() {
    const REGIONS: u32 = 35_200;
    const TOUCHES: u32 = 10_000_000;
    let mut heat = Heat::new(HeatConfig::new(REGION_MIB << 20, 1 << 32), REGIONS);
    let residence = |region| if region % 2 == 0 { Residence::Gpu(TierCopy::Valid) } else { Residence::Tier };
    (0..REGIONS).for_each(|region| heat.insert(RegionIndex(region), residence(region)));
    let mut random = Random::new();
    let begin = Instant::now();
    let mut promoted = 0u32;
    for _ in 0..TOUCHES {
        let region = RegionIndex(random.below(u64::from(REGIONS)) as u32);
        heat.touch(region, AccessKind::Read, 1 << 20, PoolTime(0));
        let victim = heat.victim(PoolTime(0), |_| true);
        promoted += u32::from(heat.should_promote(region, victim, PoolTime(0)));
    }
    let ns = begin.elapsed().as_secs_f64() * 1e9 / f64::from(TOUCHES);
    println!(
        "\n{REGIONS} regions: {ns:.0} ns to touch, find the victim and weigh (said yes {promoted} times)"
    );
}

fn main() {
    print_costs();
    print_heat();
    [110, 150, 200].into_iter().for_each(print_all);
}
