//! What a trace costs under a policy.

use vram_pool::{AccessKind, Heat, HeatConfig, PoolTime, RegionIndex, Residence, TierCopy, Victim};

use crate::trace::{Access, MEMORY, REGION_MIB};

/// GB/s of guest copies to and from GPU memory.
pub(crate) const HOST_LINK: f64 = 50.0;

/// How a policy serves an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Hit,
    /// From the tier, and the region stays there.
    Bypass,
    /// Brought in first, in place of another.
    Promote(u32),
}

/// Decides which regions are in GPU memory. At first those below `MEMORY` are.
pub(crate) trait Policy {
    fn access(&mut self, access: Access) -> Step;
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) hit_mib: u64,
    pub(crate) missed_mib: u64,
    pub(crate) bypassed_mib: u64,
    pub(crate) promotions: u64,
    /// Of the evictions, one for each promotion, those of regions written to since they came.
    pub(crate) written_back: u64,
}

impl Ledger {
    /// Bytes asked for that were not in GPU memory, in regions.
    pub(crate) fn misses(&self) -> f64 {
        self.missed_mib as f64 / REGION_MIB as f64
    }

    /// Seconds if a miss took no more than its bytes from the tier.
    pub(crate) fn seconds_of_misses(&self, tier: f64) -> f64 {
        gb(self.missed_mib) / tier + gb(self.hit_mib) / HOST_LINK
    }

    /// Seconds at so many GB/s of the tier: promotions and write-backs move whole regions.
    pub(crate) fn seconds(&self, tier: f64) -> f64 {
        let moved = (self.promotions + self.written_back) * REGION_MIB + self.bypassed_mib;
        let from_gpu = self.hit_mib + self.missed_mib - self.bypassed_mib;
        gb(moved) / tier + gb(from_gpu) / HOST_LINK
    }

    /// GB/s that the accesses see.
    pub(crate) fn throughput(&self, tier: f64) -> f64 {
        gb(self.hit_mib + self.missed_mib) / self.seconds(tier)
    }
}

fn gb(mib: u64) -> f64 {
    (mib << 20) as f64 / 1e9
}

/// Runs a trace and checks that the policy says the truth.
pub(crate) fn run(policy: &mut dyn Policy, trace: &[Access], regions: u32) -> Ledger {
    let mut resident: Vec<bool> = (0..regions).map(|region| region < MEMORY).collect();
    // The regions resident at first have a copy in the tier, as all others.
    let mut dirty = vec![false; regions as usize];
    let mut ledger = Ledger::default();
    for &access in trace {
        let region = access.region as usize;
        let step = policy.access(access);
        assert_eq!(resident[region], step == Step::Hit, "region {region}");
        match step {
            Step::Hit => ledger.hit_mib += access.mib,
            Step::Bypass => {
                ledger.missed_mib += access.mib;
                ledger.bypassed_mib += access.mib;
            }
            Step::Promote(victim) => {
                let victim = victim as usize;
                assert!(resident[victim], "the victim {victim} is not resident");
                resident[victim] = false;
                resident[region] = true;
                ledger.missed_mib += access.mib;
                ledger.promotions += 1;
                ledger.written_back += u64::from(std::mem::take(&mut dirty[victim]));
            }
        }
        dirty[region] |= access.write && step != Step::Bypass;
    }
    ledger
}

/// The pool's policy.
pub(crate) struct ByHeat {
    heat: Heat,
    moved: u64,
}

impl ByHeat {
    pub(crate) fn new(regions: u32, config: HeatConfig) -> Self {
        let mut heat = Heat::new(config, regions);
        for region in 0..regions {
            let residence = if region < MEMORY { Residence::Gpu(TierCopy::Valid) } else { Residence::Tier };
            heat.insert(RegionIndex(region), residence);
        }
        Self { heat, moved: 0 }
    }

    fn victim(&self) -> Victim {
        self.heat.victim(PoolTime(self.moved), |_| true).expect("no region is pinned")
    }
}

impl Policy for ByHeat {
    fn access(&mut self, access: Access) -> Step {
        let region = RegionIndex(access.region);
        let kind = if access.write { AccessKind::Write } else { AccessKind::Read };
        self.moved += access.mib << 20;
        let resident = self.heat.residence(region) != Some(Residence::Tier);
        self.heat.touch(region, kind, access.mib << 20, PoolTime(self.moved));
        if resident {
            return Step::Hit;
        }
        let victim = self.victim();
        if !self.heat.should_promote(region, Some(victim), PoolTime(self.moved)) {
            return Step::Bypass;
        }
        self.heat.insert(victim.region, Residence::Tier);
        let copy = if access.write { TierCopy::Stale } else { TierCopy::Valid };
        self.heat.insert(region, Residence::Gpu(copy));
        Step::Promote(victim.region.0)
    }
}
