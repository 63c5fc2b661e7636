//! Heat against a plain model: a map in which every region is aged at every touch, and searched by brute force.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vram_pool::{AccessKind, Advice, Heat, HeatConfig, PoolTime, RegionIndex, Residence, TierCopy, Victim};

const MIB: u64 = 1 << 20;
const SHARD: u64 = 64 * MIB;
const REGIONS: u32 = 12;
const NOW: PoolTime = PoolTime(0);
const CLEAN: Residence = Residence::Gpu(TierCopy::Valid);
const DIRTY: Residence = Residence::Gpu(TierCopy::Stale);

fn config() -> HeatConfig {
    HeatConfig::new(SHARD, 1000)
}

fn region(index: u32) -> RegionIndex {
    RegionIndex(index)
}

/// Regions of the given residences, without heat.
fn heat_of(residences: &[Residence]) -> Heat {
    let mut heat = Heat::new(config(), REGIONS);
    for (index, &residence) in (0..).zip(residences) {
        heat.insert(region(index), residence);
    }
    heat
}

fn read(heat: &mut Heat, index: u32, len_bytes: u64) {
    heat.touch(region(index), AccessKind::Read, len_bytes, NOW);
}

fn victim(heat: &Heat) -> Option<Victim> {
    heat.victim(NOW, |_| true)
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, Residence),
    Remove(u32),
    Touch(u32, AccessKind, u64),
    WrittenBack(u32),
    Pin(u32),
    Unpin(u32),
    Advise(u32, Advice),
    Exchange,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    residence: Residence,
    pins: u32,
    heat: f64,
}

#[derive(Default)]
struct Model {
    regions: BTreeMap<u32, Known>,
}

impl Model {
    fn resident(&self) -> usize {
        self.regions.values().filter(|known| known.residence != Residence::Tier).count()
    }

    fn memory_bytes(&self) -> f64 {
        4.0 * self.resident().max(1) as f64 * SHARD as f64
    }

    fn touch(&mut self, index: u32, kind: AccessKind, len_bytes: u64) {
        let bytes = (len_bytes + config().access_bytes) as f64;
        let memory_bytes = self.memory_bytes();
        let Some(known) = self.regions.get_mut(&index) else { return };
        known.heat += bytes;
        if kind == AccessKind::Write && known.residence != Residence::Tier {
            known.residence = DIRTY;
        }
        self.regions.values_mut().for_each(|known| known.heat /= 1.0 + bytes / memory_bytes);
    }

    fn advise(&mut self, index: u32, advice: Advice) {
        let coldest = self.unpinned(false).map(|(_, known)| known.heat).min_by(f64::total_cmp).unwrap_or(0.0);
        let Some(known) = self.regions.get_mut(&index) else { return };
        known.heat = match advice {
            Advice::Cold => 0.0,
            Advice::Prefetch => known.heat.max(coldest + 1.01 * 2.0 * 1.25 * SHARD as f64),
        };
    }

    fn unpinned(&self, in_tier: bool) -> impl Iterator<Item = (u32, Known)> + '_ {
        let of_kind = move |known: &Known| known.pins == 0 && (known.residence == Residence::Tier) == in_tier;
        self.regions.iter().map(|(&index, &known)| (index, known)).filter(move |(_, known)| of_kind(known))
    }

    /// That a region is as cold, or as hot, as any other that was admitted, and is one of them.
    fn check_chosen(&self, chosen: Option<RegionIndex>, in_tier: bool, admits: impl Fn(u32) -> bool) {
        let admitted: Vec<_> = self.unpinned(in_tier).filter(|(index, _)| admits(*index)).collect();
        let Some(chosen) = chosen else {
            assert!(admitted.is_empty(), "one of {admitted:?} is missing");
            return;
        };
        let (_, known) =
            admitted.iter().find(|(index, _)| *index == chosen.0).expect("chosen and not admitted");
        for (_, other) in &admitted {
            let (colder, hotter) = if in_tier { (other, known) } else { (known, other) };
            assert!(colder.heat <= hotter.heat * (1.0 + 1e-9), "{chosen} out of order: {admitted:?}");
        }
    }

    fn check(&self, heat: &Heat) {
        assert_eq!(heat.resident() as usize, self.resident());
        for index in 0..REGIONS {
            let known = self.regions.get(&index).map(|known| known.residence);
            assert_eq!(heat.residence(region(index)), known);
        }
        self.check_chosen(victim(heat).map(|victim| victim.region), false, |_| true);
        self.check_chosen(heat.candidate(|_| true), true, |_| true);
        let third = |index: u32| index.is_multiple_of(3);
        let of_third = heat.victim(NOW, |region| third(region.0));
        self.check_chosen(of_third.map(|victim| victim.region), false, third);
        self.check_chosen(heat.candidate(|region| third(region.0)), true, third);
    }
}

fn exchange(heat: &mut Heat, model: &mut Model) {
    let (Some(victim), Some(candidate)) = (victim(heat), heat.candidate(|_| true)) else { return };
    if heat.should_promote(candidate, Some(victim), NOW) {
        for (region, residence) in [(victim.region, Residence::Tier), (candidate, CLEAN)] {
            heat.insert(region, residence);
            model.regions.get_mut(&region.0).expect("known").residence = residence;
        }
    }
}

fn apply(step: Step, heat: &mut Heat, model: &mut Model) {
    match step {
        Step::Insert(index, residence) => {
            heat.insert(region(index), residence);
            let new = Known { residence, pins: 0, heat: 0.0 };
            model.regions.entry(index).or_insert(new).residence = residence;
        }
        Step::Remove(index) => {
            heat.remove(region(index));
            model.regions.remove(&index);
        }
        Step::Touch(index, kind, len_bytes) => {
            heat.touch(region(index), kind, len_bytes, NOW);
            model.touch(index, kind, len_bytes);
        }
        Step::WrittenBack(index) => {
            heat.written_back(region(index));
            let dirty = model.regions.get_mut(&index).filter(|known| known.residence == DIRTY);
            dirty.into_iter().for_each(|known| known.residence = CLEAN);
        }
        Step::Pin(index) => {
            let known = model.regions.get_mut(&index);
            assert_eq!(heat.pin(region(index)), known.is_some());
            known.into_iter().for_each(|known| known.pins += 1);
        }
        Step::Unpin(index) => {
            heat.unpin(region(index));
            model
                .regions
                .get_mut(&index)
                .into_iter()
                .for_each(|known| known.pins = known.pins.saturating_sub(1));
        }
        Step::Advise(index, advice) => {
            heat.advise(region(index), advice);
            model.advise(index, advice);
        }
        Step::Exchange => exchange(heat, model),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = 0..REGIONS;
    let residence = prop_oneof![Just(CLEAN), Just(DIRTY), Just(Residence::Tier)];
    let kind = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    let step = prop_oneof![
        3 => (index.clone(), residence).prop_map(|(index, residence)| Step::Insert(index, residence)),
        1 => index.clone().prop_map(Step::Remove),
        12 => (index.clone(), kind, 0..=SHARD).prop_map(|(index, kind, bytes)| Step::Touch(index, kind, bytes)),
        1 => index.clone().prop_map(Step::WrittenBack),
        2 => index.clone().prop_map(Step::Pin),
        2 => index.clone().prop_map(Step::Unpin),
        1 => (index, prop_oneof![Just(Advice::Cold), Just(Advice::Prefetch)])
            .prop_map(|(index, advice)| Step::Advise(index, advice)),
        2 => Just(Step::Exchange),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn heat_random_steps_agree_with_the_model(steps in steps()) {
        let (mut heat, mut model) = (Heat::new(config(), REGIONS), Model::default());
        for step in steps {
            apply(step, &mut heat, &mut model);
            model.check(&heat);
        }
        // Unpinned, all can be evicted, and nothing is left then.
        for (&index, known) in &mut model.regions {
            (0..std::mem::take(&mut known.pins)).for_each(|_| heat.unpin(region(index)));
        }
        while let Some(victim) = victim(&heat) {
            apply(Step::Insert(victim.region.0, Residence::Tier), &mut heat, &mut model);
            model.check(&heat);
        }
        prop_assert_eq!(model.resident(), 0);
        prop_assert_eq!(heat.resident(), 0);
    }
}

#[test]
fn touch_longer_than_weights_fit_keeps_the_order() {
    let mut heat = heat_of(&[CLEAN, CLEAN, CLEAN, Residence::Tier]);
    // Each round touches 1.75 regions of the 12 that are remembered: 6000 rounds are scaled down twice.
    for _ in 0..6000 {
        for (index, len_bytes) in [(0, SHARD), (1, SHARD / 2), (2, SHARD / 4)] {
            read(&mut heat, index, len_bytes);
        }
    }
    read(&mut heat, 3, SHARD);

    let order: Vec<u32> = std::iter::from_fn(|| {
        let coldest = victim(&heat)?.region;
        heat.remove(coldest);
        Some(coldest.0)
    })
    .collect();

    assert_eq!(order, [2, 1, 0]);
    assert_eq!(heat.candidate(|_| true), Some(region(3)));
}

#[test]
fn should_promote_clean_victim_asks_for_more_than_one_pass() {
    let mut heat = heat_of(&[CLEAN, Residence::Tier]);
    read(&mut heat, 0, SHARD / 64);

    read(&mut heat, 1, SHARD);
    assert!(!heat.should_promote(region(1), victim(&heat), NOW));

    read(&mut heat, 1, SHARD);
    assert!(heat.should_promote(region(1), victim(&heat), NOW));
}

#[test]
fn should_promote_dirty_victim_asks_for_twice_as_much() {
    let mut heat = heat_of(&[DIRTY, Residence::Tier]);
    read(&mut heat, 0, SHARD / 64);
    (0..2).for_each(|_| read(&mut heat, 1, SHARD));
    assert!(!heat.should_promote(region(1), victim(&heat), NOW));

    heat.written_back(region(0));

    assert!(heat.should_promote(region(1), victim(&heat), NOW));
}

#[test]
fn should_promote_victim_that_was_never_used_asks_for_a_quarter() {
    let mut heat = heat_of(&[DIRTY, Residence::Tier]);

    read(&mut heat, 1, SHARD / 8);
    assert!(!heat.should_promote(region(1), victim(&heat), NOW));

    read(&mut heat, 1, SHARD / 4);
    assert!(heat.should_promote(region(1), victim(&heat), NOW));
}

#[test]
fn should_promote_free_room_is_taken_by_what_is_in_a_tier_and_not_pinned() {
    let mut heat = heat_of(&[CLEAN, Residence::Tier, Residence::Tier]);
    assert!(heat.pin(region(2)));

    assert!(!heat.should_promote(region(0), None, NOW));
    assert!(heat.should_promote(region(1), None, NOW));
    assert!(!heat.should_promote(region(2), None, NOW));
    assert!(!heat.should_promote(region(3), None, NOW));
    assert!(!heat.should_promote(region(u32::MAX), None, NOW));
}

#[test]
fn touch_write_in_a_tier_is_not_stale_after_promotion() {
    let mut heat = heat_of(&[Residence::Tier]);
    heat.touch(region(0), AccessKind::Write, SHARD, NOW);
    assert_eq!(heat.residence(region(0)), Some(Residence::Tier));

    heat.insert(region(0), CLEAN);
    heat.touch(region(0), AccessKind::Write, 1, NOW);

    assert_eq!(heat.residence(region(0)), Some(DIRTY));
}

#[test]
fn advise_prefetch_is_enough_for_the_coldest_and_not_for_the_hottest() {
    let mut heat = heat_of(&[DIRTY, DIRTY, Residence::Tier]);
    (0..8).for_each(|_| read(&mut heat, 1, SHARD));
    read(&mut heat, 0, SHARD / 4);

    // As often as the guest likes.
    (0..3).for_each(|_| heat.advise(region(2), Advice::Prefetch));

    assert!(heat.should_promote(region(2), victim(&heat), NOW));
    let hottest = heat.victim(NOW, |candidate| candidate == region(1));
    assert!(!heat.should_promote(region(2), hottest, NOW));
}

#[test]
fn advise_cold_makes_the_victim() {
    let mut heat = heat_of(&[CLEAN, CLEAN]);
    read(&mut heat, 0, SHARD);
    (0..4).for_each(|_| read(&mut heat, 1, SHARD));
    assert_eq!(victim(&heat).map(|victim| victim.region), Some(region(0)));

    heat.advise(region(1), Advice::Cold);

    assert_eq!(victim(&heat).map(|victim| victim.region), Some(region(1)));
}

#[test]
fn pin_too_often_is_refused_and_counted_back() {
    let mut heat = heat_of(&[CLEAN]);
    (0..u16::MAX).for_each(|_| assert!(heat.pin(region(0))));
    assert!(!heat.pin(region(0)));

    (1..u16::MAX).for_each(|_| heat.unpin(region(0)));
    assert_eq!(victim(&heat), None);
    heat.unpin(region(0));
    assert!(victim(&heat).is_some());
}

#[test]
fn demand_idle_slice_has_the_colder_victim() {
    let [mut idle, mut busy] = [heat_of(&[CLEAN, CLEAN]), heat_of(&[CLEAN, CLEAN])];
    for heat in [&mut idle, &mut busy] {
        (0..2).for_each(|index| read(heat, index, SHARD));
    }
    let now = PoolTime(5000);
    busy.touch(region(0), AccessKind::Read, SHARD, now);

    let (cold, warm) = (idle.victim(now, |_| true).unwrap(), busy.victim(now, |_| true).unwrap());

    assert!(cold.demand < warm.demand);
}

#[test]
fn demand_hot_region_takes_the_place_of_an_idle_slice_and_not_the_other_way() {
    let [mut idle, mut busy] = [heat_of(&[CLEAN, Residence::Tier]), heat_of(&[CLEAN, Residence::Tier])];
    (0..2).for_each(|_| read(&mut idle, 1, SHARD));
    read(&mut idle, 0, SHARD);
    let now = PoolTime(5000);
    for index in [0, 0, 0, 1, 1] {
        busy.touch(region(index), AccessKind::Read, SHARD, now);
    }

    assert!(!busy.should_promote(region(1), busy.victim(now, |_| true), now));
    assert!(busy.should_promote(region(1), idle.victim(now, |_| true), now));
    assert!(!idle.should_promote(region(1), busy.victim(now, |_| true), now));
}
