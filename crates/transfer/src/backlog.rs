//! Work that waits for its turn, of several flows.

use std::collections::{HashMap, VecDeque};

use crate::Flow;

/// What has not been begun because enough is. A job holds a ring slot or is a scrub, so they are few.
///
/// Work of one flow stays in order; the flows take turns.
pub(crate) struct Backlog<T> {
    /// Of each flow, in order; none is empty.
    flows: HashMap<Flow, VecDeque<T>>,
    /// Whose turn it is: each flow once.
    turns: VecDeque<Flow>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self { flows: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Backlog<T> {
    pub(crate) fn push(&mut self, flow: Flow, work: T) {
        let waiting = self.flows.entry(flow).or_default();
        if waiting.is_empty() {
            self.turns.push_back(flow);
        }
        waiting.push_back(work);
    }

    /// What comes next.
    pub(crate) fn front(&self) -> Option<&T> {
        self.flows.get(self.turns.front()?)?.front()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true).map(|(_, work)| work)
    }

    /// What comes next if only these flows are asked; the others keep their turns.
    pub(crate) fn pop_of(&mut self, mut may_begin: impl FnMut(Flow) -> bool) -> Option<(Flow, T)> {
        let turn = self.turns.iter().position(|flow| may_begin(*flow))?;
        let flow = self.turns.remove(turn)?;
        let waiting = self.flows.get_mut(&flow)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.flows.remove(&flow);
        } else {
            self.turns.push_back(flow);
        }
        Some((flow, next?))
    }

    /// Which flows have something waiting, and how much.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Flow, usize)> {
        self.flows.iter().map(|(flow, waiting)| (*flow, waiting.len()))
    }

    /// Takes all that waits.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).flows.into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_take_turns_and_keep_their_order() {
        let (a, b, c) = (Flow::Requests(1), Flow::Requests(2), Flow::Upkeep(1));
        let mut backlog = Backlog::default();
        for (flow, work) in [(a, 1), (a, 2), (a, 3), (b, 4), (c, 5), (b, 6)] {
            backlog.push(flow, work);
        }
        assert_eq!(backlog.front(), Some(&1));
        let order: Vec<_> = std::iter::from_fn(|| backlog.pop()).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
    }

    #[test]
    fn flow_that_may_not_begin_keeps_its_turn() {
        let (a, b) = (Flow::Requests(1), Flow::Requests(2));
        let mut backlog = Backlog::default();
        for (flow, work) in [(a, 1), (b, 2), (b, 3), (a, 4)] {
            backlog.push(flow, work);
        }
        assert_eq!(backlog.pop_of(|flow| flow != a), Some((b, 2)));
        assert_eq!(backlog.pop_of(|_| false), None);
        assert_eq!(backlog.pop(), Some(1));
        let left: HashMap<_, _> = backlog.waiting().collect();
        assert_eq!(left, HashMap::from([(a, 1), (b, 1)]));
        let mut rest: Vec<_> = backlog.take_all().collect();
        rest.sort_unstable();
        assert_eq!(rest, [3, 4]);
        assert_eq!(backlog.pop(), None);
    }
}
