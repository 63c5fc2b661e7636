//! A sorted list that is cheap to search and to change, and small.
//!
//! Entries lie packed in leaves of up to [`Entry::LEAF`], leaves in groups of up to [`GROUP`], groups in one row: three
//! short searches find an entry among millions, and its neighbours mostly lie in the same cache line. `BTreeMap` does not
//! offer that: its nodes hold eleven entries, and what is next to an entry takes another search.
//!
//! Each group and leaf has a separator: a key above all keys before it and not above its own. A separator stays when the
//! first entry of its leaf goes, so it may be lower than that leaf's first key.
//!
//! Two neighbouring leaves of a group hold more than three quarters of a leaf together, else they become one; groups
//! likewise. The room that stays unused is bounded by that.

mod branch;

use std::fmt::Debug;

use self::branch::{Branch, Child, count_while, cut_at, give_back_room, push_at};

/// Most leaves of a group.
const GROUP: usize = 128;

/// What a [`Sorted`] keeps.
pub(crate) trait Entry: Copy + Debug {
    /// What entries are sorted by; no two entries have the same.
    type Key: Copy + Ord + Debug;
    /// Most entries of a leaf.
    const LEAF: usize;

    fn key(self) -> Self::Key;
}

/// Entries in the order of their keys.
#[derive(Debug)]
pub(crate) struct Sorted<E: Entry> {
    groups: Branch<E::Key, Group<E>>,
}

type Group<E> = Branch<<E as Entry>::Key, Vec<E>>;

/// Where an entry is. Good until an entry is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    group: usize,
    leaf: usize,
    slot: usize,
}

impl<E: Entry> Default for Sorted<E> {
    fn default() -> Self {
        Self { groups: Branch::default() }
    }
}

impl<E: Entry> Sorted<E> {
    pub(crate) fn get(&self, at: Place) -> Option<E> {
        self.leaf(at)?.get(at.slot).copied()
    }

    /// The last entry whose key is not above `key`.
    pub(crate) fn last_up_to(&self, key: E::Key) -> Option<Place> {
        let (group, leaf, entries) = self.descend(key)?;
        let after = count_while(entries, |entry| entry.key() <= key);
        match after.checked_sub(1) {
            Some(slot) => Some(Place { group, leaf, slot }),
            None => self.before(Place { group, leaf, slot: 0 }),
        }
    }

    /// The first entry whose key is not below `key`.
    pub(crate) fn first_from(&self, key: E::Key) -> Option<Place> {
        let (group, leaf, entries) = self.descend(key)?;
        let slot = count_while(entries, |entry| entry.key() < key);
        self.existing(Place { group, leaf, slot })
    }

    /// The entry after one.
    pub(crate) fn after(&self, at: Place) -> Option<Place> {
        self.existing(Place { slot: at.slot.saturating_add(1), ..at })
    }

    /// The entry before one.
    pub(crate) fn before(&self, at: Place) -> Option<Place> {
        if let Some(slot) = at.slot.checked_sub(1) {
            return Some(Place { slot, ..at });
        }
        let (group, leaf) = match at.leaf.checked_sub(1) {
            Some(leaf) => (at.group, leaf),
            None => {
                let group = at.group.checked_sub(1)?;
                (group, self.groups.children.get(group)?.children.len().checked_sub(1)?)
            }
        };
        let slot = self.groups.children.get(group)?.children.get(leaf)?.len().checked_sub(1)?;
        Some(Place { group, leaf, slot })
    }

    /// Entries from a place on, in order.
    pub(crate) fn iter_from(&self, place: Option<Place>) -> impl Iterator<Item = E> + '_ {
        std::iter::successors(place, |&at| self.after(at)).map_while(|at| self.get(at))
    }

    /// All entries in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = E> + '_ {
        self.groups.children.iter().flat_map(|group| &group.children).flatten().copied()
    }

    /// Puts another entry with the same key in the place of one.
    pub(crate) fn replace(&mut self, at: Place, entry: E) {
        if let Some(old) = self.leaf_mut(at).and_then(|entries| entries.get_mut(at.slot)) {
            *old = entry;
        }
    }

    /// Adds an entry whose key is new.
    pub(crate) fn insert(&mut self, entry: E) {
        match self.descend(entry.key()) {
            Some((group, leaf, entries)) => {
                let slot = count_while(entries, |other| other.key() < entry.key());
                self.insert_at(Place { group, leaf, slot }, entry);
            }
            None => {
                self.groups.insert(0, entry.key(), Branch::of_one(entry.key(), vec![entry]), usize::MAX);
            }
        }
    }

    /// Adds an entry that comes next after the one at a place.
    pub(crate) fn insert_after(&mut self, at: Place, entry: E) {
        let slot = at.slot.saturating_add(1);
        if self.leaf(at).is_some_and(|entries| slot < entries.len()) {
            self.insert_at(Place { slot, ..at }, entry);
        } else {
            // Which leaf it goes to is for the separators to say.
            self.insert(entry);
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, at: Place) {
        let Some(group) = self.groups.children.get_mut(at.group) else { return };
        let Some(entries) = group.children.get_mut(at.leaf) else { return };
        if at.slot >= entries.len() {
            return;
        }
        entries.remove(at.slot);
        give_back_room(entries, E::LEAF);
        if group.tidy(at.leaf, three_quarters(E::LEAF)) {
            self.groups.tidy(at.group, three_quarters(GROUP));
        }
    }

    /// Takes the entry with a key out, if there is one.
    pub(crate) fn remove_key(&mut self, key: E::Key) {
        if let Some(at) = self.last_up_to(key)
            && self.get(at).is_some_and(|entry| entry.key() == key)
        {
            self.remove(at);
        }
    }

    /// Whether order, separators and sizes are right.
    pub(crate) fn is_consistent(&self) -> bool {
        let keys = || self.iter().map(Entry::key);
        let in_order = keys().zip(keys().skip(1)).all(|(a, b)| a < b);
        let groups = &self.groups;
        in_order
            && groups.is_consistent(usize::MAX, three_quarters(GROUP))
            && groups.children.iter().all(|group| group.is_consistent(GROUP, three_quarters(E::LEAF)))
            && self.leaves_fit_separators()
    }

    fn leaves_fit_separators(&self) -> bool {
        let mut last = None;
        for (&first, group) in self.groups.firsts.iter().zip(&self.groups.children) {
            if last.is_some_and(|last| last >= first) || group.firsts.first().is_none_or(|leaf| *leaf < first)
            {
                return false;
            }
            for (&first, leaf) in group.firsts.iter().zip(&group.children) {
                let (Some(lowest), Some(highest)) = (leaf.first(), leaf.last()) else { return false };
                let fits = last.is_none_or(|last| last < first && first <= lowest.key());
                if !fits || leaf.len() > E::LEAF || leaf.capacity() > leaf.len().saturating_add(E::LEAF / 4) {
                    return false;
                }
                last = Some(highest.key());
            }
        }
        true
    }

    /// The leaf a key belongs to.
    fn descend(&self, key: E::Key) -> Option<(usize, usize, &Vec<E>)> {
        let group = self.groups.index_for(key);
        let leaves = self.groups.children.get(group)?;
        let leaf = leaves.index_for(key);
        Some((group, leaf, leaves.children.get(leaf)?))
    }

    /// The place itself, or the first of the next leaf if it is just past its leaf.
    fn existing(&self, at: Place) -> Option<Place> {
        let group = self.groups.children.get(at.group)?;
        if at.slot < group.children.get(at.leaf)?.len() {
            return Some(at);
        }
        let leaf = at.leaf.saturating_add(1);
        if leaf < group.children.len() {
            return Some(Place { group: at.group, leaf, slot: 0 });
        }
        let group = at.group.saturating_add(1);
        (group < self.groups.children.len()).then_some(Place { group, leaf: 0, slot: 0 })
    }

    fn leaf(&self, at: Place) -> Option<&Vec<E>> {
        self.groups.children.get(at.group)?.children.get(at.leaf)
    }

    fn leaf_mut(&mut self, at: Place) -> Option<&mut Vec<E>> {
        self.groups.children.get_mut(at.group)?.children.get_mut(at.leaf)
    }

    /// Keeps the separators true when a key comes first of all.
    fn lower_separators(&mut self, at: Place, key: E::Key) {
        self.groups.lower(at.group, key);
        if let Some(group) = self.groups.children.get_mut(at.group) {
            group.lower(at.leaf, key);
        }
    }

    fn insert_at(&mut self, at: Place, entry: E) {
        if at.slot == 0 {
            self.lower_separators(at, entry.key());
        }
        let Some(group) = self.groups.children.get_mut(at.group) else { return };
        let Some(entries) = group.children.get_mut(at.leaf) else { return };
        if entries.len() < E::LEAF {
            push_at(entries, at.slot, entry, E::LEAF / 8);
            return;
        }
        // The leaf is full.
        let cut = cut_at(at.slot, E::LEAF);
        let mut right = entries.split_off(cut);
        give_back_room(entries, E::LEAF);
        match at.slot.checked_sub(cut) {
            Some(slot) => push_at(&mut right, slot, entry, E::LEAF / 8),
            None => push_at(entries, at.slot, entry, E::LEAF / 8),
        }
        let Some(first) = right.first().map(|entry| entry.key()) else { return };
        let leaf = at.leaf.saturating_add(1);
        group.insert(leaf, first, right, GROUP / 8);
        group.tidy_both(at.leaf, three_quarters(E::LEAF));
        if group.children.len() > GROUP {
            let right = group.split_off(cut_at(leaf, GROUP));
            let Some(&first) = right.firsts.first() else { return };
            self.groups.insert(at.group.saturating_add(1), first, right, usize::MAX);
            self.groups.tidy_both(at.group, three_quarters(GROUP));
        } else {
            self.groups.tidy(at.group, three_quarters(GROUP));
        }
    }
}

impl<E: Entry> Child for Vec<E> {
    fn size(&self) -> usize {
        self.len()
    }

    fn absorb(&mut self, mut right: Self) {
        self.reserve_exact(right.len());
        self.append(&mut right);
    }
}

impl<K: Copy + Ord, E: Entry> Child for Branch<K, Vec<E>> {
    fn size(&self) -> usize {
        self.children.len()
    }

    fn absorb(&mut self, mut right: Self) {
        let seam = self.children.len();
        self.firsts.reserve_exact(right.firsts.len());
        self.children.reserve_exact(right.children.len());
        self.firsts.append(&mut right.firsts);
        self.children.append(&mut right.children);
        self.tidy(seam, three_quarters(E::LEAF));
    }
}

/// Three quarters of a size: what two neighbours hold more than.
fn three_quarters(size: usize) -> usize {
    size.saturating_sub(size / 4)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests;
