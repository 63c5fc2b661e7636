//! Bringing what is needed to where it can be used.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crossbeam_channel::Receiver;
use vram_gpu::{DeviceRange, GpuId};
use vram_pool::{RegionIndex, SliceId};
use vram_transfer::{Again, TransferError};

use crate::Residency;
use crate::moves::{MoveError, read_failure};
use crate::promote::{Need, Promoted};
use crate::tiers::Key;

/// Why what a stream waits for did not come, if it did not.
pub(crate) type Verdict = Arc<Mutex<Option<TransferError>>>;

/// Regions that are needed at the same time, each with whose it is.
#[derive(Default)]
pub(crate) struct Needed {
    /// Those that cannot be used where they are.
    pub(crate) bring: Vec<Key>,
    /// Those that can.
    pub(crate) beside: Vec<Key>,
    /// One that shows bytes of another slice, and needs a copy of them.
    pub(crate) private: Option<Key>,
}

impl Needed {
    /// The regions of a slice among them, which are to stay where they are.
    fn of(&self, slice: SliceId) -> Vec<RegionIndex> {
        let all = self.beside.iter().chain(&self.bring).chain(&self.private);
        all.filter(|(of, _)| *of == slice).map(|(_, region)| *region).collect()
    }
}

/// What is asked of a slice's fetch thread.
pub(crate) enum Fetch {
    /// A stream waits for regions that it cannot use where they are.
    Needed {
        /// Which.
        needed: Needed,
        /// Where it is said if they do not come.
        verdict: Verdict,
        /// To be called then.
        again: Again,
    },
    /// A region is used so much in its tier that it may be worth promoting.
    Worthwhile {
        /// Whose.
        slice: SliceId,
        /// Which.
        region: RegionIndex,
    },
    /// A region is to be on a GPU, and to stay there.
    Pinned {
        /// Whose.
        slice: SliceId,
        /// Which.
        region: RegionIndex,
    },
    /// A region is to move to a GPU if that has room.
    Preferred {
        /// Whose.
        slice: SliceId,
        /// Which.
        region: RegionIndex,
        /// Where to.
        gpu: GpuId,
    },
}

/// A slice's fetch thread, which ends when nobody can ask any more.
pub(crate) fn fetch_all(residency: &Weak<Residency>, fetches: &Receiver<Fetch>) {
    for fetch in fetches {
        let Some(residency) = residency.upgrade() else { return };
        match fetch {
            Fetch::Needed { needed, verdict, again } => {
                residency.fetch_needed(&needed, &verdict, again);
            }
            // Who asked is not told: others ask again while it matters.
            Fetch::Worthwhile { slice, region } => residency.fetch_suggested(slice, region, Need::IfWorth),
            Fetch::Pinned { slice, region } => residency.fetch_suggested(slice, region, Need::Must),
            Fetch::Preferred { slice, region, gpu } => {
                residency.worthwhile().remove(&(slice, region));
                let relocation = residency.pool().plan_relocation(slice, region, gpu);
                if let Some(relocation) = relocation {
                    residency.relocate(relocation);
                }
            }
        }
    }
}

impl Residency {
    /// Asks that a region be promoted if it is worth it. Asked for again meanwhile, it is not asked twice.
    pub(crate) fn suggest(&self, slice: SliceId, region: RegionIndex) {
        if self.worthwhile().insert((slice, region)) {
            self.fetch_soon(slice, Fetch::Worthwhile { slice, region });
        }
    }

    fn fetch_suggested(&self, slice: SliceId, region: RegionIndex, need: Need) {
        // From now on it can be asked for again.
        self.worthwhile().remove(&(slice, region));
        let _ = self.promote(slice, region, need, &[]);
    }

    fn fetch_needed(self: &Arc<Self>, needed: &Needed, verdict: &Verdict, again: Again) {
        // What is there stays until whoever waits for it has it.
        let mut held: Vec<(SliceId, DeviceRange)> = Vec::new();
        let mut hold = |(slice, region): Key| {
            held.extend(self.pool().hold(slice, region).map(|range| (slice, range)));
        };
        needed.beside.iter().filter(|key| !needed.bring.contains(key)).copied().for_each(&mut hold);
        let private = needed.private.iter().map(|key| (key, self.make_private(*key, &needed.of(key.0))));
        let brought = needed.bring.iter().map(|key| (key, self.make_usable(*key, &needed.of(key.0))));
        for (key, outcome) in private.chain(brought) {
            if let Err(error) = outcome {
                *verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                break;
            }
            hold(*key);
        }
        again();
        for (slice, range) in held {
            self.unpin(slice, &[range]);
        }
    }

    /// Brings a region to a GPU, or if that is not worth it, to where it can be written to.
    fn make_usable(&self, (slice, region): Key, keep: &[RegionIndex]) -> Result<(), TransferError> {
        match self.promote(slice, region, Need::IfWorth, keep) {
            Promoted::Yes => return Ok(()),
            Promoted::Failed(error) => return Err(error),
            Promoted::NotWorth | Promoted::NoRoom => {}
        }
        match self.lift(slice, region) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(MoveError::Busy | MoveError::Refused) => {}
            Err(MoveError::Failed(error)) => return Err(error),
            Err(MoveError::Tier(error)) => return Err(read_failure(&error)),
        }
        match self.promote(slice, region, Need::Must, keep) {
            Promoted::Yes => Ok(()),
            Promoted::Failed(error) => Err(error),
            Promoted::NotWorth | Promoted::NoRoom => Err(TransferError::NoRoom),
        }
    }

    pub(crate) fn worthwhile(&self) -> std::sync::MutexGuard<'_, HashSet<(SliceId, RegionIndex)>> {
        self.worthwhile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
