//! Branches: what a sorted list is built from, and how lists get and give back room.

/// Children in order, each with its separator.
#[derive(Debug)]
pub(super) struct Branch<K, C> {
    pub(super) firsts: Vec<K>,
    pub(super) children: Vec<C>,
}

impl<K, C> Default for Branch<K, C> {
    fn default() -> Self {
        Self { firsts: Vec::new(), children: Vec::new() }
    }
}

impl<K: Copy + Ord, C: Child> Branch<K, C> {
    pub(super) fn of_one(first: K, child: C) -> Self {
        Self { firsts: vec![first], children: vec![child] }
    }

    /// The child a key belongs to.
    pub(super) fn index_for(&self, key: K) -> usize {
        count_while(&self.firsts, |first| first <= key).saturating_sub(1)
    }

    pub(super) fn insert(&mut self, index: usize, first: K, child: C, most_room: usize) {
        push_at(&mut self.firsts, index, first, most_room);
        push_at(&mut self.children, index, child, most_room);
    }

    pub(super) fn lower(&mut self, index: usize, key: K) {
        if let Some(first) = self.firsts.get_mut(index) {
            *first = key.min(*first);
        }
    }

    pub(super) fn split_off(&mut self, cut: usize) -> Self {
        let right = Self { firsts: self.firsts.split_off(cut), children: self.children.split_off(cut) };
        self.firsts.shrink_to_fit();
        self.children.shrink_to_fit();
        right
    }

    /// Drops a child that is empty, or makes it one with a neighbour if both together are not above a size. Returns
    /// whether there are fewer children now.
    pub(super) fn tidy(&mut self, index: usize, most: usize) -> bool {
        let size = |index: Option<usize>| self.children.get(index?).map(Child::size);
        let Some(own) = size(Some(index)) else { return false };
        let fits = |other: Option<usize>| other.is_some_and(|other| own.saturating_add(other) <= most);
        let (left, right) = (index.checked_sub(1), index.checked_add(1));
        if own == 0 {
            self.take(index);
        } else if fits(size(right)) {
            self.absorb_next(index);
        } else if let Some(left) = left.filter(|&left| fits(size(Some(left)))) {
            self.absorb_next(left);
        } else {
            return false;
        }
        true
    }

    /// Tidies both halves of what was one child.
    pub(super) fn tidy_both(&mut self, left: usize, most: usize) {
        self.tidy(left.saturating_add(1), most);
        self.tidy(left, most);
    }

    fn absorb_next(&mut self, index: usize) {
        let next = self.take(index.saturating_add(1));
        if let (Some(child), Some(next)) = (self.children.get_mut(index), next) {
            child.absorb(next);
        }
    }

    fn take(&mut self, index: usize) -> Option<C> {
        (index < self.children.len()).then(|| {
            self.firsts.remove(index);
            let taken = self.children.remove(index);
            give_back_room(&mut self.firsts, super::GROUP);
            give_back_room(&mut self.children, super::GROUP);
            taken
        })
    }

    /// Whether no child is empty, and no two neighbours should be one.
    pub(super) fn is_consistent(&self, most_children: usize, least_of_two: usize) -> bool {
        let sizes = || self.children.iter().map(Child::size);
        self.firsts.len() == self.children.len()
            && self.children.len() <= most_children
            && sizes().all(|size| size > 0)
            && sizes().zip(sizes().skip(1)).all(|(a, b)| a.saturating_add(b) > least_of_two)
            && self.firsts.iter().zip(self.firsts.iter().skip(1)).all(|(a, b)| a < b)
    }
}

/// What stands in a branch.
pub(super) trait Child {
    fn size(&self) -> usize;
    /// Takes in all of its right neighbour.
    fn absorb(&mut self, right: Self);
}

/// Inserts into a list that gets room for as much again when its room is used up, but for no more than `most_room` items.
pub(super) fn push_at<T>(items: &mut Vec<T>, index: usize, item: T, most_room: usize) {
    const LEAST_ROOM: usize = 4;
    if items.len() == items.capacity() {
        items.reserve_exact(items.len().clamp(LEAST_ROOM, most_room.max(LEAST_ROOM)));
    }
    if index <= items.len() {
        items.insert(index, item);
    }
}

/// Gives back unused room of a list when it is more than a quarter of the list's greatest size, but for an eighth.
pub(super) fn give_back_room<T>(items: &mut Vec<T>, most: usize) {
    if items.capacity().saturating_sub(items.len()) > most / 4 {
        items.shrink_to(items.len().saturating_add(most / 8));
    }
}

/// Where to cut a full leaf into which an entry is to go: in the middle; near the end just there, so that leaves filled
/// in rising order stay full.
pub(super) fn cut_at(slot: usize, len: usize) -> usize {
    if slot >= len.saturating_sub(len / 8) { slot.min(len) } else { len / 2 }
}

/// How many items, from the first on, are of a kind that no later item is.
///
/// Looks at items far apart, and then at those nearer each other between two of these. The looks of one round do not wait
/// for each other, as those of a binary search do, so a leaf that is in no cache costs about one trip to memory.
pub(super) fn count_while<T: Copy>(items: &[T], of_the_kind: impl Fn(T) -> bool) -> usize {
    let mut from = 0usize;
    let mut rest = items;
    for step in [4096, 512, 64, 8] {
        if rest.len() > step {
            let looked_at = rest.iter().step_by(step);
            let heads = looked_at.filter(|&&item| of_the_kind(item)).count();
            let skipped = heads.saturating_sub(1).saturating_mul(step);
            from = from.saturating_add(skipped);
            rest = rest.get(skipped..).unwrap_or_default();
            rest = rest.get(..step).unwrap_or(rest);
        }
    }
    from.saturating_add(rest.iter().filter(|&&item| of_the_kind(item)).count())
}
