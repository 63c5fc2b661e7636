use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A key and something else, in leaves that are soon full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair(u32, u8);

impl Entry for Pair {
    type Key = u32;
    const LEAF: usize = 16;

    fn key(self) -> u32 {
        self.0
    }
}

fn sorted(keys: impl IntoIterator<Item = u32>) -> Sorted<Pair> {
    let mut sorted = Sorted::default();
    keys.into_iter().for_each(|key| sorted.insert(Pair(key, 0)));
    assert!(sorted.is_consistent());
    sorted
}

fn keys(sorted: &Sorted<Pair>) -> Vec<u32> {
    sorted.iter().map(Entry::key).collect()
}

#[test]
fn insert_in_any_order_keeps_order() {
    let shuffled = (0..5000u32).map(|step| step * 1237 % 5000);
    assert!(keys(&sorted(shuffled)).into_iter().eq(0..5000));
    assert!(keys(&sorted((0..5000).rev())).into_iter().eq(0..5000));
}

#[test]
fn insert_in_rising_order_fills_leaves() {
    let sorted = sorted(0..8000);
    let leaves = sorted.groups.children.iter().map(|group| group.children.len()).sum::<usize>();
    assert!(leaves <= 8000 / 15, "{leaves} leaves");
}

#[test]
fn remove_of_all_leaves_nothing() {
    let mut sorted = sorted(0..2000);
    (0..2000u32).for_each(|step| sorted.remove_key(step * 777 % 2000));
    assert!(sorted.is_consistent());
    assert_eq!((sorted.iter().next(), sorted.groups.children.len()), (None, 0));
}

#[test]
fn remove_of_an_absent_key_changes_nothing() {
    let mut sorted = sorted([1, 3]);
    [0, 2, 4].into_iter().for_each(|key| sorted.remove_key(key));
    assert_eq!(keys(&sorted), [1, 3]);
}

#[test]
fn search_of_an_empty_list_finds_nothing() {
    let sorted = sorted([]);
    assert_eq!((sorted.last_up_to(7), sorted.first_from(0)), (None, None));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u8),
    InsertAfter(u32, u8),
    Replace(u32, u8),
    Remove(u32),
    RemoveRange(u32, u32),
}

/// Carries a step out on the list and on the model.
fn apply(step: &Step, sorted: &mut Sorted<Pair>, model: &mut BTreeMap<u32, u8>) {
    let before = |model: &BTreeMap<u32, u8>, key| model.range(..key).next_back().map(|(&key, _)| key);
    match *step {
        Step::Insert(key, value) if !model.contains_key(&key) => {
            sorted.insert(Pair(key, value));
            model.insert(key, value);
        }
        Step::InsertAfter(key, value) if !model.contains_key(&key) => {
            let Some(before) = before(model, key) else { return };
            let place = sorted.last_up_to(before).unwrap();
            sorted.insert_after(place, Pair(key, value));
            model.insert(key, value);
        }
        Step::Replace(key, value) => {
            let Some(old) = model.get_mut(&key) else { return };
            *old = value;
            let place = sorted.first_from(key).unwrap();
            sorted.replace(place, Pair(key, value));
        }
        Step::Remove(key) => {
            model.remove(&key);
            sorted.remove_key(key);
        }
        Step::RemoveRange(from, count) => {
            for key in from..from.saturating_add(count) {
                model.remove(&key);
                sorted.remove_key(key);
            }
        }
        _ => {}
    }
}

/// Searching around a key finds the same in both.
fn agree_around(key: u32, sorted: &Sorted<Pair>, model: &BTreeMap<u32, u8>) {
    let pair = |entry: Option<(&u32, &u8)>| entry.map(|(&key, &value)| Pair(key, value));
    let up_to = sorted.last_up_to(key);
    assert_eq!(up_to.and_then(|at| sorted.get(at)), pair(model.range(..=key).next_back()));
    assert_eq!(
        up_to.and_then(|at| sorted.after(at)).and_then(|at| sorted.get(at)),
        up_to.and(pair(model.range(key.saturating_add(1)..).next()))
    );
    let from = sorted.first_from(key);
    assert_eq!(from.and_then(|at| sorted.get(at)), pair(model.range(key..).next()));
    assert_eq!(
        from.and_then(|at| sorted.before(at)).and_then(|at| sorted.get(at)),
        from.and(pair(model.range(..key).next_back()))
    );
    let few = sorted.iter_from(from).take(20);
    assert!(few.eq(model.range(key..).take(20).map(|(&key, &value)| Pair(key, value))));
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..1500u32;
    let step = prop_oneof![
        6 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Insert(key, value)),
        4 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::InsertAfter(key, value)),
        2 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Replace(key, value)),
        5 => key.clone().prop_map(Step::Remove),
        1 => (key, 1..100u32).prop_map(|(from, count)| Step::RemoveRange(from, count)),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #[test]
    fn sorted_under_random_steps_agrees_with_a_map(filled in 0..1500u32, stride in 1..4usize, steps in steps()) {
        let start = (0..filled).step_by(stride);
        let mut model: BTreeMap<u32, u8> = start.clone().map(|key| (key, 0)).collect();
        let mut sorted = sorted(start);
        for step in &steps {
            apply(step, &mut sorted, &mut model);
            let (Step::Insert(key, _)
            | Step::InsertAfter(key, _)
            | Step::Replace(key, _)
            | Step::Remove(key)
            | Step::RemoveRange(key, _)) = *step;
            agree_around(key, &sorted, &model);
            assert!(sorted.is_consistent(), "after {step:?}");
        }
        assert!(sorted.iter().eq(model.into_iter().map(|(key, value)| Pair(key, value))));
    }
}
