//! How long bytes take on a link: every GPU has three lanes, and copies that share a lane share its rate.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vram_gpu::GpuId;

/// Bytes per second of the links of every GPU. `None` is as fast as this host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// To and from the host, each way.
    pub host_bytes_per_s: Option<u64>,
    /// To and from other GPUs, both ways together.
    pub peer_bytes_per_s: Option<u64>,
}

/// The lanes a copy needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Host to device.
    In(GpuId),
    /// Device to host.
    Out(GpuId),
    /// Between two GPUs.
    Peer(GpuId, GpuId),
    /// Within one GPU: never limited.
    Local,
}

#[derive(Debug)]
struct Lanes {
    inward: Instant,
    outward: Instant,
    peer: Instant,
}

/// When each lane is free again.
#[derive(Debug)]
pub(crate) struct Pace {
    state: Mutex<(Rates, Vec<Lanes>)>,
}

impl Pace {
    pub(crate) fn new(rates: Rates, gpus: usize) -> Self {
        let now = Instant::now();
        let lanes = (0..gpus).map(|_| Lanes { inward: now, outward: now, peer: now }).collect();
        Self { state: Mutex::new((rates, lanes)) }
    }

    pub(crate) fn set_rates(&self, rates: Rates) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = rates;
    }

    /// Books `len_bytes` on the path; says how long to wait before they are over.
    pub(crate) fn book(&self, path: Path, len_bytes: u64) -> Duration {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (rates, lanes) = &mut *guard;
        let rate = match path {
            Path::In(_) | Path::Out(_) => rates.host_bytes_per_s,
            Path::Peer(..) => rates.peer_bytes_per_s,
            Path::Local => None,
        };
        let Some(rate) = rate else { return Duration::ZERO };
        let took = Duration::from_nanos(
            u64::try_from(
                u128::from(len_bytes)
                    .saturating_mul(1_000_000_000)
                    .checked_div(u128::from(rate.max(1)))
                    .unwrap_or(0),
            )
            .unwrap_or(u64::MAX),
        );
        let now = Instant::now();
        let mut end = now;
        let mut each = |lanes: &mut [Lanes], gpu: GpuId, pick: fn(&mut Lanes) -> &mut Instant| {
            if let Some(lane) = lanes.get_mut(gpu.index()) {
                let free = pick(lane);
                *free = (*free).max(now).checked_add(took).unwrap_or(now);
                end = end.max(*free);
            }
        };
        match path {
            Path::In(gpu) => each(lanes, gpu, |lane| &mut lane.inward),
            Path::Out(gpu) => each(lanes, gpu, |lane| &mut lane.outward),
            Path::Peer(a, b) => {
                each(lanes, a, |lane| &mut lane.peer);
                each(lanes, b, |lane| &mut lane.peer);
            }
            Path::Local => {}
        }
        end.saturating_duration_since(now)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn book_twice_on_one_lane_queues_and_other_lanes_are_free() {
        let pace = Pace::new(Rates { host_bytes_per_s: Some(1000), peer_bytes_per_s: None }, 2);
        let first = pace.book(Path::In(GpuId(0)), 1000);
        let second = pace.book(Path::In(GpuId(0)), 1000);
        assert!(first > Duration::from_millis(900) && first <= Duration::from_secs(1));
        assert!(second > Duration::from_millis(1900) && second <= Duration::from_secs(2));
        assert!(pace.book(Path::Out(GpuId(0)), 1000) <= Duration::from_secs(1));
        assert!(pace.book(Path::In(GpuId(1)), 1000) <= Duration::from_secs(1));
        assert_eq!(pace.book(Path::Peer(GpuId(0), GpuId(1)), 1 << 40), Duration::ZERO);
    }
}
