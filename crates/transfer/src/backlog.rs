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

    /// How much waits.
    pub(crate) fn len(&self) -> usize {
        self.flows.values().fold(0, |sum, waiting| sum.saturating_add(waiting.len()))
    }

    /// Takes all that waits.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).flows.into_values().flatten()
    }
}
