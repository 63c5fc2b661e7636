//! Failures, stalls and slowness on purpose.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vram_gpu::{GpuError, GpuId};

use crate::pace::{Pace, Rates};

/// Faults a configuration asks for from the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) fail_creates: Vec<(GpuId, u32)>,
    pub(crate) fail_copy: Option<u64>,
    pub(crate) lose_gpu: Vec<(GpuId, u64)>,
}

/// The faults of one [`SimBackend`](crate::SimBackend). Clones act on the same backend; every method takes effect for
/// work that is due from now on and may be called from any thread.
///
/// "Copy" means `copy_in`, `copy_out`, `copy` and `fill` alike. Copies are numbered when they are enqueued.
#[derive(Clone, Debug)]
pub struct Faults {
    shared: Arc<Shared>,
    pace: Arc<Pace>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    refuse_creates: HashMap<GpuId, u32>,
    /// Numbers of copies that fail, counted from the first copy of the backend.
    fail_copies: Vec<u64>,
    /// Per GPU: which of its copies takes it down.
    lose_at: Vec<(GpuId, u64)>,
    copies: u64,
    copies_per_gpu: HashMap<GpuId, u64>,
    delay: Duration,
    paused: Vec<GpuId>,
    lost: Vec<GpuId>,
    /// Set when the backend goes away: nothing waits any more.
    over: bool,
}

/// What one enqueued copy is in for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doom {
    pub(crate) fails: bool,
    pub(crate) loses_gpu: bool,
}

impl Faults {
    pub(crate) fn new(plan: &Plan, delay: Duration, pace: Arc<Pace>) -> Self {
        let state = State {
            refuse_creates: plan.fail_creates.iter().copied().collect(),
            fail_copies: plan.fail_copy.into_iter().collect(),
            lose_at: plan.lose_gpu.clone(),
            delay,
            ..State::default()
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }), pace }
    }

    /// The next `count` calls of `create_shard` on a GPU are refused as out of memory.
    pub fn fail_creates(&self, gpu: GpuId, count: u32) {
        self.state().refuse_creates.insert(gpu, count);
    }

    /// The `nth` copy enqueued from now on (1 is the next) moves half of its bytes and then fails.
    pub fn fail_copy(&self, nth: u64) {
        let mut state = self.state();
        let number = state.copies.saturating_add(nth);
        state.fail_copies.push(number);
    }

    /// Every copy takes at least this long; copies of one stream one after the other.
    pub fn delay_copies(&self, delay: Duration) {
        self.state().delay = delay;
        self.shared.changed.notify_all();
    }

    /// Limits how fast bytes move.
    pub fn limit_rates(&self, rates: Rates) {
        self.pace.set_rates(rates);
    }

    /// Holds all copies of streams on a GPU until [`Self::resume`]: what is running ends, what is enqueued waits.
    pub fn pause(&self, gpu: GpuId) {
        self.state().paused.push(gpu);
    }

    /// Ends [`Self::pause`].
    pub fn resume(&self, gpu: GpuId) {
        self.state().paused.retain(|paused| *paused != gpu);
        self.shared.changed.notify_all();
    }

    /// Copies and fills enqueued so far, on all GPUs.
    pub fn copies(&self) -> u64 {
        self.state().copies
    }

    /// Loses a GPU for good: everything on it fails with `DeviceLost`, except giving things back.
    pub fn lose_gpu(&self, gpu: GpuId) {
        self.state().lost.push(gpu);
        self.shared.changed.notify_all();
    }

    /// Takes back every fault but lost GPUs.
    pub fn clear(&self) {
        let mut state = self.state();
        state.refuse_creates.clear();
        state.fail_copies.clear();
        state.lose_at.clear();
        state.delay = Duration::ZERO;
        state.paused.clear();
        self.pace.set_rates(Rates::default());
        self.shared.changed.notify_all();
    }

    pub(crate) fn check_alive(&self, gpu: GpuId) -> Result<(), GpuError> {
        if self.state().lost.contains(&gpu) {
            Err(GpuError::DeviceLost { gpu, reason: "it was taken away on purpose".to_owned() })
        } else {
            Ok(())
        }
    }

    /// Counts a call of `create_shard`; whether it is to be refused.
    pub(crate) fn refuse_create(&self, gpu: GpuId) -> bool {
        match self.state().refuse_creates.get_mut(&gpu) {
            Some(left) if *left > 0 => {
                *left = left.saturating_sub(1);
                true
            }
            _ => false,
        }
    }

    /// Counts an enqueued copy.
    pub(crate) fn number_copy(&self, gpu: GpuId) -> Doom {
        let mut state = self.state();
        state.copies = state.copies.saturating_add(1);
        let number = state.copies;
        let of_gpu = state.copies_per_gpu.entry(gpu).or_default();
        *of_gpu = of_gpu.saturating_add(1);
        let of_gpu = *of_gpu;
        let fails = state.fail_copies.contains(&number);
        state.fail_copies.retain(|nth| *nth > number);
        Doom { fails, loses_gpu: state.lose_at.contains(&(gpu, of_gpu)) }
    }

    /// Blocks a worker while its GPU is paused, and for the delay of one copy.
    pub(crate) fn hold_copy(&self, gpu: GpuId) {
        let started = Instant::now();
        let mut state = self.state();
        while !state.over && !state.lost.contains(&gpu) {
            if state.paused.contains(&gpu) {
                state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = state.delay.saturating_sub(started.elapsed());
            if left.is_zero() {
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Blocks a worker for the time bytes take.
    pub(crate) fn sleep(&self, time: Duration) {
        let started = Instant::now();
        let mut state = self.state();
        while !state.over {
            let left = time.saturating_sub(started.elapsed());
            if left.is_zero() {
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The backend goes away: every hold ends now.
    pub(crate) fn end(&self) {
        self.state().over = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
