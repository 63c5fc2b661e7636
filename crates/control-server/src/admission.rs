//! Who gets a connection.
//!
//! Every connection served holds a [`Slot`]. Some slots are kept for root and for the user the daemon runs as; of the
//! others one user can hold a part only. So nobody keeps the daemon's owner out, and no user keeps the others out,
//! however many connections they make. Who is not admitted is told to come back, which the client does by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Limits;

const ROOT: u32 = 0;

/// The slots of a server.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    max_connections: usize,
    max_of_others: usize,
    max_per_user: usize,
    owner: u32,
    held: Arc<Mutex<HashMap<Option<u32>, usize>>>,
}

impl Admission {
    /// All slots free; `owner` is whom the slots are kept for, beside root.
    pub(crate) fn new(limits: &Limits, owner: u32) -> Self {
        Self {
            max_connections: limits.max_connections,
            max_of_others: limits.max_connections.saturating_sub(limits.kept_connections),
            max_per_user: limits.max_connections_per_user,
            owner,
            held: Arc::default(),
        }
    }

    /// A slot for a user, unless they hold too many, or too many are held. A user nobody knows is one user.
    pub(crate) fn admit(&self, user: Option<u32>) -> Option<Slot> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = held.values().sum();
        let of_others: usize =
            held.iter().filter(|(holder, _)| !self.is_privileged(**holder)).map(|(_, count)| count).sum();
        let of_user = held.get(&user).copied().unwrap_or(0);
        let fits = total < self.max_connections
            && (self.is_privileged(user) || (of_others < self.max_of_others && of_user < self.max_per_user));
        fits.then(|| {
            held.insert(user, of_user.saturating_add(1));
            Slot { user, held: self.held.clone() }
        })
    }

    fn is_privileged(&self, user: Option<u32>) -> bool {
        user.is_some_and(|user| user == ROOT || user == self.owner)
    }
}

/// The right to be served. Drop gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    user: Option<u32>,
    held: Arc<Mutex<HashMap<Option<u32>, usize>>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.user) {
            Some(count) if *count > 1 => *count = count.saturating_sub(1),
            _ => {
                held.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 7;

    fn admission() -> Admission {
        let limits = Limits {
            max_connections: 6,
            kept_connections: 2,
            max_connections_per_user: 3,
            ..Limits::default()
        };
        Admission::new(&limits, OWNER)
    }

    fn fill(admission: &Admission, user: Option<u32>) -> Vec<Slot> {
        std::iter::from_fn(|| admission.admit(user)).collect()
    }

    #[test]
    fn admit_one_user_gets_a_part_and_leaves_room_for_others() {
        let admission = admission();

        let greedy = fill(&admission, Some(1000));
        let other = fill(&admission, Some(1001));

        assert_eq!((greedy.len(), other.len()), (3, 1));
    }

    #[test]
    fn admit_root_and_owner_when_everybody_else_is_there() {
        for privileged in [ROOT, OWNER] {
            let admission = admission();
            let crowd: Vec<Slot> = (1000..1100).flat_map(|user| fill(&admission, Some(user))).collect();

            let kept = fill(&admission, Some(privileged));

            assert_eq!((crowd.len(), kept.len()), (4, 2));
        }
    }

    #[test]
    fn admit_owner_takes_every_slot_and_no_more() {
        let admission = admission();

        let all = fill(&admission, Some(OWNER));

        assert_eq!(all.len(), 6);
        assert!(admission.admit(Some(ROOT)).is_none() && admission.admit(Some(1)).is_none());
    }

    #[test]
    fn admit_users_nobody_knows_count_as_one() {
        assert_eq!(fill(&admission(), None).len(), 3);
    }

    #[test]
    fn slot_given_back_is_free_for_the_same_user() {
        let admission = admission();
        let mut slots = fill(&admission, Some(1000));

        slots.pop();

        assert_eq!(fill(&admission, Some(1000)).len(), 1);
        drop(slots);
        assert!(admission.held.lock().unwrap().is_empty());
    }
}
