//! What is under way in a group of streams, in the order it came: how a barrier over all of them knows its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The place of a job in its group's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What opens a barrier that waits. Called with no lock held.
pub(crate) type Opening = Box<dyn FnOnce() + Send>;

/// The jobs of a group that have not ended.
///
/// A ticket is drawn under the lock of the job's stream, so within a stream the order of tickets is that of the jobs. A
/// barrier waits only for smaller tickets, hence none waits in a circle.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    open: BTreeSet<Ticket>,
    /// Barriers that have begun and wait for what came before them.
    barriers: BTreeMap<Ticket, Opening>,
    /// Whether a thread is opening barriers: one at a time does, so that a row of them is a loop and no recursion.
    opening: bool,
}

impl State {
    fn is_first(&self, ticket: Ticket) -> bool {
        self.open.first().is_none_or(|first| *first >= ticket)
    }

    /// The next barrier whose turn it is.
    fn ready(&mut self) -> Option<Opening> {
        let (ticket, _) = self.barriers.first_key_value()?;
        if self.is_first(*ticket) { self.barriers.pop_first().map(|(_, opening)| opening) } else { None }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job came.
    pub(crate) fn draw(&self) -> Ticket {
        let mut state = self.lock();
        let ticket = Ticket(state.next);
        state.next = state.next.saturating_add(1);
        state.open.insert(ticket);
        ticket
    }

    /// A job has ended and been answered. Opens the barriers that waited for it.
    pub(crate) fn end(&self, ticket: Ticket) {
        let mut state = self.lock();
        state.open.remove(&ticket);
        if std::mem::replace(&mut state.opening, true) {
            return;
        }
        while let Some(opening) = state.ready() {
            drop(state);
            opening();
            state = self.lock();
        }
        state.opening = false;
    }

    /// A barrier has begun. True if all that came before it has ended; else `opening` is called when it has.
    pub(crate) fn arrive(&self, ticket: Ticket, opening: impl FnOnce() -> Opening) -> bool {
        let mut state = self.lock();
        let first = state.is_first(ticket);
        if !first {
            state.barriers.insert(ticket, opening());
        }
        first
    }
}
