//! From a job's work to steps on lanes. Pure.

use std::sync::Arc;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId, HostSpan, Pattern};
use vram_guest_memory::SpanList;

use crate::host_piece::{HostLaneId, HostPiece, HostStep};
use crate::{Part, TransferError, Work};

/// A direction of traffic; with a GPU, a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// Host to device.
    In,
    /// Device to host.
    Out,
    /// Within and between devices.
    Peer,
}

/// The name of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LaneId {
    pub(crate) gpu: GpuId,
    pub(crate) direction: Direction,
}

/// One call to the backend.
#[derive(Debug)]
pub(crate) enum Step {
    In { to: DeviceAddress, from: HostSpan },
    Out { to: HostSpan, from: DeviceAddress },
    Copy { to: DeviceAddress, from: DeviceAddress, len_bytes: u64 },
    Fill { range: DeviceRange, pattern: Pattern },
}

/// Most steps that are handed to a lane as one piece, with one event behind them: a job of more would overflow the queue
/// of a driver, and hold up others while it is enqueued.
pub(crate) const MAX_PIECE_STEPS: usize = 1024;

/// Most bytes of one piece, so that a copy of a whole slice lets others in between. A single step may have more.
pub(crate) const MAX_PIECE_BYTES: u64 = 256 << 20;

/// Some steps of one job on one lane, in order; a job has several of them on a lane if it has very many steps there.
#[derive(Debug)]
pub(crate) struct LanePlan {
    pub(crate) lane: LaneId,
    /// Offset in the job of the first byte these steps move.
    pub(crate) first_offset: u64,
    /// How many these are.
    pub(crate) len_bytes: u64,
    pub(crate) steps: Vec<Step>,
}

/// A planned job.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) total_bytes: u64,
    pub(crate) lanes: Vec<LanePlan>,
    /// What needs no GPU, or one only at its end.
    pub(crate) host: Vec<HostPiece>,
}

impl Plan {
    pub(crate) fn of(work: Work) -> Result<Self, TransferError> {
        let mut plan = Self::default();
        let fits = match work {
            Work::Write { to, from } => plan.spans(&to, &from, Direction::In),
            Work::Read { from, to } => plan.spans(&from, &to, Direction::Out),
            Work::Copy { to, from } => plan.copy(&to, &from),
            Work::Fill { to, pattern } => to.iter().try_for_each(|part| plan.fill(part, pattern)),
            // A job that is located has other work by now.
            Work::Barrier | Work::GroupBarrier | Work::Located(_) => Some(()),
        };
        fits.map(|()| plan).ok_or(TransferError::Mismatch)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.host.is_empty()
    }

    fn push(&mut self, gpu: GpuId, direction: Direction, len_bytes: u64, step: Step) {
        let lane = LaneId { gpu, direction };
        // The last piece of the lane is near the end: a job's GPUs are few.
        match self.lanes.iter_mut().rev().find(|plan| plan.lane == lane) {
            Some(plan)
                if plan.steps.len() < MAX_PIECE_STEPS
                    && plan.len_bytes.saturating_add(len_bytes) <= MAX_PIECE_BYTES =>
            {
                plan.len_bytes = plan.len_bytes.saturating_add(len_bytes);
                plan.steps.push(step);
            }
            _ => self.lanes.push(LanePlan {
                lane,
                first_offset: self.total_bytes,
                len_bytes,
                steps: vec![step],
            }),
        }
        self.total_bytes = self.total_bytes.saturating_add(len_bytes);
    }

    /// Adds `len_bytes` bytes to a host lane, in steps no longer than a piece may be.
    fn push_host(
        &mut self,
        lane: HostLaneId,
        len_bytes: u64,
        step: impl Fn(u64, u64) -> Option<HostStep>,
    ) -> Option<()> {
        let mut at = 0;
        while let Some(left) = len_bytes.checked_sub(at).filter(|left| *left > 0) {
            let len = left.min(lane.max_piece_bytes());
            let step = step(at, len)?;
            match self.host.last_mut() {
                Some(piece)
                    if piece.lane == lane
                        && piece.first_offset.saturating_add(piece.len_bytes) == self.total_bytes
                        && piece.steps.len() < MAX_PIECE_STEPS
                        && piece.len_bytes.saturating_add(len) <= lane.max_piece_bytes() =>
                {
                    piece.len_bytes = piece.len_bytes.saturating_add(len);
                    piece.steps.push(step);
                }
                _ => {
                    let first_offset = self.total_bytes;
                    self.host.push(HostPiece { lane, first_offset, len_bytes: len, steps: vec![step] });
                }
            }
            self.total_bytes = self.total_bytes.saturating_add(len);
            at = at.saturating_add(len);
        }
        Some(())
    }

    /// The lane of all steps, if there is one such that keeps their order: host lanes do not.
    pub(crate) fn only_lane(&self) -> Option<LaneId> {
        if !self.host.is_empty() {
            return None;
        }
        let first = self.lanes.first()?.lane;
        self.lanes.iter().all(|plan| plan.lane == first).then_some(first)
    }

    /// Between parts and somebody's spans. `None` if they do not fit each other.
    fn spans(&mut self, parts: &[Part], spans: &SpanList, direction: Direction) -> Option<()> {
        if bytes_of(parts) != spans.len_bytes() {
            return None;
        }
        for part in parts {
            let piece = spans.slice(self.total_bytes, part.len_bytes())?;
            let mut at = 0u64;
            for span in piece.spans() {
                let len_bytes = span.len_bytes() as u64;
                let (here, there) = (part.slice(at, len_bytes)?, Part::Host(span.clone()));
                match direction {
                    Direction::In => self.join(here, there)?,
                    _ => self.join(there, here)?,
                }
                at = at.saturating_add(len_bytes);
            }
        }
        Some(())
    }

    /// Cuts both sides at each other's edges. `None` if they do not fit each other.
    fn copy(&mut self, to: &[Part], from: &[Part]) -> Option<()> {
        if bytes_of(to) != bytes_of(from) {
            return None;
        }
        let mut sources = from.iter();
        let mut source = sources.next();
        let mut read = 0u64;
        for target in to {
            let mut written = 0u64;
            while let Some(left) = target.len_bytes().checked_sub(written).filter(|left| *left > 0) {
                let part = source?;
                let len_bytes = part.len_bytes().saturating_sub(read).min(left);
                if len_bytes > 0 {
                    self.join(target.slice(written, len_bytes)?, part.slice(read, len_bytes)?)?;
                }
                written = written.saturating_add(len_bytes);
                read = read.saturating_add(len_bytes);
                if read == part.len_bytes() {
                    source = sources.next();
                    read = 0;
                }
            }
        }
        Some(())
    }

    /// What gets the bytes of one part, or of a piece of it, into another of the same length.
    ///
    /// Between GPUs the lane is that of the GPU that is read: a GPU pushes faster than it pulls.
    fn join(&mut self, to: Part, from: Part) -> Option<()> {
        let len_bytes = to.len_bytes();
        match (to, from) {
            (Part::Gpu { range: to, .. }, Part::Gpu { range: from, gpu }) => {
                let step = Step::Copy { to: to.start, from: from.start, len_bytes };
                self.push(gpu, Direction::Peer, len_bytes, step);
                Some(())
            }
            (Part::Gpu { range, gpu }, Part::Host(from)) => {
                self.push(gpu, Direction::In, len_bytes, Step::In { to: range.start, from });
                Some(())
            }
            (Part::Host(to), Part::Gpu { range, gpu }) => {
                self.push(gpu, Direction::Out, len_bytes, Step::Out { to, from: range.start });
                Some(())
            }
            (Part::Host(to), Part::Host(from)) => self.push_host(HostLaneId::Memory, len_bytes, |at, len| {
                Some(HostStep::Copy { to: piece_of(&to, at, len)?, from: piece_of(&from, at, len)? })
            }),
            (Part::Host(to), Part::Cold { source, offset_bytes, .. }) => {
                self.push_host(HostLaneId::Cold, len_bytes, |at, len| {
                    let offset_bytes = offset_bytes.checked_add(at)?;
                    Some(HostStep::Fetch {
                        to: piece_of(&to, at, len)?,
                        source: Arc::clone(&source),
                        offset_bytes,
                    })
                })
            }
            (Part::Gpu { range, gpu }, Part::Cold { source, offset_bytes, .. }) => {
                self.push_host(HostLaneId::Cold, len_bytes, |at, len_bytes| {
                    let (to, offset_bytes) = (range.start.checked_add(at)?, offset_bytes.checked_add(at)?);
                    Some(HostStep::Stage { to, gpu, source: Arc::clone(&source), offset_bytes, len_bytes })
                })
            }
            (Part::Cold { .. }, _) => None,
        }
    }

    fn fill(&mut self, part: &Part, pattern: Pattern) -> Option<()> {
        let len_bytes = part.len_bytes();
        match part {
            Part::Gpu { range, gpu } => {
                self.push(*gpu, Direction::Peer, len_bytes, Step::Fill { range: *range, pattern });
                Some(())
            }
            Part::Host(to) => {
                len_bytes.is_multiple_of(pattern.size_bytes()).then_some(())?;
                self.push_host(HostLaneId::Memory, len_bytes, |at, len| {
                    Some(HostStep::Fill { to: piece_of(to, at, len)?, pattern })
                })
            }
            Part::Cold { .. } => None,
        }
    }
}

fn bytes_of(parts: &[Part]) -> u64 {
    parts.iter().fold(0, |sum, part| part.len_bytes().saturating_add(sum))
}

fn piece_of(span: &HostSpan, at: u64, len_bytes: u64) -> Option<HostSpan> {
    span.part(usize::try_from(at).ok()?, usize::try_from(len_bytes).ok()?).ok()
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use proptest::prelude::*;
    use vram_guest_memory::HostBuffer;

    use super::*;
    use crate::ColdSource;

    fn parts(start: u64, lens: &[u64], gpus: u16) -> Vec<Part> {
        let mut at = start;
        lens.iter()
            .enumerate()
            .map(|(i, len)| {
                let range = DeviceRange { start: DeviceAddress(at), len_bytes: *len };
                at += len;
                Part::gpu(range, GpuId(i as u16 % gpus))
            })
            .collect()
    }

    /// The GPU of the part a range lies in.
    fn gpu_of(parts: &[Part], whole: DeviceRange) -> Option<GpuId> {
        parts.iter().find_map(|part| match part {
            Part::Gpu { range, gpu } => range.contains(&whole).then_some(*gpu),
            _ => None,
        })
    }

    /// Cuts `total` at the given places.
    fn cut(total: u64, cuts: &[u64]) -> Vec<u64> {
        let mut edges: Vec<u64> = cuts.iter().map(|cut| cut % total).filter(|cut| *cut > 0).collect();
        edges.sort_unstable();
        edges.dedup();
        edges.push(total);
        let mut at = 0;
        edges.iter().map(|edge| edge - std::mem::replace(&mut at, *edge)).collect()
    }

    proptest! {
        #[test]
        fn copy_any_cuts_moves_every_byte_once_to_its_place(
            total in 1u64..5000,
            to_cuts in prop::collection::vec(any::<u64>(), 0..6),
            from_cuts in prop::collection::vec(any::<u64>(), 0..6),
        ) {
            let to = parts(100_000, &cut(total, &to_cuts), 3);
            let from = parts(500_000, &cut(total, &from_cuts), 3);
            let plan = Plan::of(Work::Copy { to: to.clone(), from: from.clone() }).unwrap();
            prop_assert_eq!(plan.total_bytes, total);
            let mut seen = vec![false; total as usize];
            for lane in &plan.lanes {
                for step in &lane.steps {
                    let Step::Copy { to: t, from: f, len_bytes } = step else { panic!("not a copy") };
                    prop_assert_eq!(t.0 - 100_000, f.0 - 500_000);
                    let whole = DeviceRange { start: *f, len_bytes: *len_bytes };
                    prop_assert_eq!(gpu_of(&from, whole), Some(lane.lane.gpu));
                    let target = DeviceRange { start: *t, len_bytes: *len_bytes };
                    prop_assert!(gpu_of(&to, target).is_some());
                    for i in 0..*len_bytes {
                        prop_assert!(!std::mem::replace(&mut seen[(t.0 - 100_000 + i) as usize], true));
                    }
                }
            }
            prop_assert!(seen.into_iter().all(|byte| byte));
        }

        #[test]
        fn write_any_cuts_pairs_every_span_byte_with_its_address(
            total in 1u64..5000,
            to_cuts in prop::collection::vec(any::<u64>(), 0..6),
            span_cuts in prop::collection::vec(any::<u64>(), 0..6),
        ) {
            // Spans are laid out backwards in the buffer, so that none merges with the next.
            let buffer = HostBuffer::new(8192).unwrap();
            let whole = buffer.span();
            let mut list = SpanList::new();
            let mut expected = Vec::new();
            let mut end = 8192usize;
            for len in cut(total, &span_cuts) {
                end -= len as usize;
                list.push(whole.part(end, len as usize).unwrap());
                expected.extend(end..end + len as usize);
            }
            let base = whole.as_ptr() as usize;
            let plan = Plan::of(Work::Write { to: parts(0, &cut(total, &to_cuts), 4), from: list }).unwrap();
            let mut count = 0;
            for lane in &plan.lanes {
                for step in &lane.steps {
                    let Step::In { to, from } = step else { panic!("not a write") };
                    for i in 0..from.len_bytes() {
                        prop_assert_eq!(expected[to.0 as usize + i], from.as_ptr() as usize - base + i);
                        count += 1;
                    }
                }
            }
            prop_assert_eq!(count, total);
        }
    }

    #[test]
    fn jobs_of_many_steps_are_cut_into_pieces_in_order() {
        let many = vec![1; MAX_PIECE_STEPS * 2 + 1];
        let plan = Plan::of(Work::Fill { to: parts(0, &many, 1), pattern: Pattern::U8(0) }).unwrap();
        let pieces: Vec<_> = plan.lanes.iter().map(|lane| (lane.first_offset, lane.steps.len())).collect();
        assert_eq!(pieces, [(0, 1024), (1024, 1024), (2048, 1)]);
        assert!(plan.only_lane().is_some());
        let plan = Plan::of(Work::Fill { to: parts(0, &many, 2), pattern: Pattern::U8(0) }).unwrap();
        let pieces: Vec<_> = plan.lanes.iter().map(|lane| (lane.first_offset, lane.steps.len())).collect();
        assert_eq!(pieces, [(0, 1024), (1, 1024), (2048, 1)]);
        assert!(plan.only_lane().is_none());
    }

    #[test]
    fn host_pieces_are_runs_of_the_job_and_claim_no_lane() {
        struct Never;
        impl ColdSource for Never {
            fn read(&self, _: u64, _: &HostSpan) -> Result<(), TransferError> {
                Err(TransferError::Cancelled)
            }
        }
        const MIB: u64 = 1 << 20;
        let host = |len| Part::Host(HostBuffer::new(len as usize).unwrap().span());
        let cold = |len| Part::cold(Arc::new(Never), 0, len);
        let gpu =
            |start, len_bytes| Part::gpu(DeviceRange { start: DeviceAddress(start), len_bytes }, GpuId(0));
        let from = vec![cold(MIB), cold(9 * MIB), host(17 * MIB), gpu(0, MIB), host(MIB), cold(MIB)];
        let plan = Plan::of(Work::Copy { to: vec![host(30 * MIB)], from }).unwrap();
        assert_eq!(plan.total_bytes, 30 * MIB);
        let pieces: Vec<_> = plan
            .host
            .iter()
            .map(|piece| (piece.lane, piece.first_offset / MIB, piece.len_bytes / MIB))
            .collect();
        let (memory, cold_lane) = (HostLaneId::Memory, HostLaneId::Cold);
        assert_eq!(
            pieces,
            [
                (cold_lane, 0, 1),
                (cold_lane, 1, 4),
                (cold_lane, 5, 4),
                (cold_lane, 9, 1),
                (memory, 10, 16),
                (memory, 26, 1),
                (memory, 28, 1),
                (cold_lane, 29, 1)
            ]
        );
        assert_eq!(plan.lanes.iter().map(|lane| lane.first_offset).collect::<Vec<_>>(), [27 * MIB]);
        assert!(plan.only_lane().is_none());
        let plan = Plan::of(Work::Copy { to: vec![gpu(0, MIB)], from: vec![cold(MIB)] }).unwrap();
        assert!(plan.only_lane().is_none() && plan.lanes.is_empty());
        let plan = Plan::of(Work::Copy { to: vec![gpu(0, MIB)], from: vec![host(MIB)] }).unwrap();
        assert_eq!(plan.only_lane(), Some(LaneId { gpu: GpuId(0), direction: Direction::In }));
    }

    #[test]
    fn host_length_mismatch_is_refused() {
        let buffer = HostBuffer::new(4096).unwrap();
        let mut list = SpanList::new();
        list.push(buffer.span());
        let work = Work::Write { to: parts(0, &[4095], 1), from: list };
        assert!(matches!(Plan::of(work), Err(TransferError::Mismatch)));
    }
}
