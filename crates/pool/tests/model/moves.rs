//! Steps that move regions between GPUs, keep them where they are, or change what a slice may have.

use super::*;

impl Model {
    pub(super) fn resize(&mut self, index: usize, limit: u32, guarantee: u32) {
        let others = self.slices.iter().enumerate().filter(|(other, _)| *other != index);
        let promised: u32 = others.clone().map(|(_, slice)| slice.guarantee).sum();
        let slice = &self.slices[index];
        let at_home: u32 = others
            .filter(|(_, other)| other.local && other.home == slice.home)
            .map(|(_, other)| other.guarantee)
            .sum();
        let usable = |gpu: usize| if self.draining[gpu] { 0 } else { self.capacity[gpu] };
        let mut promisable = (0..3).map(usable).sum::<u32>().saturating_sub(promised);
        if slice.local {
            promisable = promisable.min(usable(slice.home.index()).saturating_sub(at_home));
        }
        let most_regions = self.pool_configured + self.tier_regions;
        let fits_band = limit.min(most_regions) as usize <= slice.regions.len();
        let fits =
            fits_band && guarantee <= limit && (guarantee <= slice.guarantee || guarantee <= promisable);
        let bytes = |shards: u32| u64::from(shards) * self.shard_bytes;
        let resized = self.pool.resize_slice(slice.id, bytes(limit), bytes(guarantee));
        assert_eq!(resized.is_ok(), fits, "{resized:?}");
        if fits {
            let slice = &mut self.slices[index];
            (slice.limit, slice.guarantee) = (limit, guarantee);
        }
    }

    pub(super) fn drain(&mut self, gpu: GpuId) {
        let lost = self.pool.gpus()[gpu.index()].lost;
        let left: u32 = (0..3)
            .filter(|other| *other != gpu.index() && !self.draining[*other])
            .map(|other| self.capacity[other])
            .sum();
        let guaranteed: u32 = self.slices.iter().map(|slice| slice.guarantee).sum();
        let local = self.slices.iter().any(|slice| slice.local && slice.home == gpu);
        match self.pool.begin_drain(gpu) {
            Ok(()) => {
                assert!(!lost && (self.draining[gpu.index()] || (left > 0 && guaranteed <= left && !local)));
                self.draining[gpu.index()] = true;
            }
            Err(DrainError::Lost { .. }) => assert!(lost),
            Err(DrainError::Local { .. }) => assert!(local),
            Err(DrainError::GuaranteesDoNotFit { .. }) => assert!(guaranteed > left || left == 0),
            Err(other) => panic!("unexpected {other}"),
        }
    }

    pub(super) fn relocate(&mut self) {
        let can_leave = |slice: &ModelSlice, region: usize| {
            let start = slice.start + region as u64 * self.shard_bytes;
            let cells = slice.cells_of(range_of(start, self.shard_bytes));
            matches!(slice.regions[region], RegionState::Backed(gpu) if self.draining[gpu.index()])
                && slice.cells[cells].iter().all(|cell| *cell != Cell::Quarantined)
        };
        let waiting: Vec<usize> = (0..self.slices.len())
            .filter(|index| {
                let slice = &self.slices[*index];
                (0..slice.regions.len()).any(|region| can_leave(slice, region))
                    && !self.place(*index, 1).is_empty()
            })
            .collect();
        let Some(relocation) = self.pool.next_relocation() else {
            assert!(waiting.is_empty(), "something could move");
            return;
        };
        let index = self.slices.iter().position(|slice| slice.id == relocation.slice()).unwrap();
        assert!(waiting.contains(&index));
        let short = |index: &usize| self.missing(&self.slices[*index]) > 0;
        assert!(short(&index) || !waiting.iter().any(short), "a borrower went first");
        let region = relocation.from().region.0 as usize;
        assert!(can_leave(&self.slices[index], region));
        assert_eq!(self.place(index, 1), [relocation.to()]);
        let slice = &mut self.slices[index];
        assert_eq!(slice.regions[region], RegionState::Backed(relocation.from().gpu));
        slice.regions[region] = RegionState::Moving { from: relocation.from().gpu, to: relocation.to() };
        self.relocations.push((relocation, true));
    }

    pub(super) fn end_relocation(&mut self, nth: usize, end: RelocationEnd) {
        if self.relocations.is_empty() {
            return;
        }
        let nth = nth % self.relocations.len();
        let (relocation, _) = &self.relocations[nth];
        let index = self.slices.iter().position(|slice| slice.id == relocation.slice()).unwrap();
        let region = relocation.from().region.0 as usize;
        let (from, to) = (relocation.from().gpu, relocation.to());
        let moving = self.slices[index].regions[region] == RegionState::Moving { from, to };
        let possible = moving && !self.pool.gpus()[to.index()].lost;
        assert_eq!(self.pool.is_possible(relocation), possible);
        let quiet = self.pool.is_quiet(relocation.slice(), relocation.from().region);
        assert_eq!(quiet, self.slices[index].pins[region] == 0);
        if end == RelocationEnd::Finish && !quiet {
            return;
        }
        let (relocation, _) = self.relocations.swap_remove(nth);
        if moving {
            let stays_on = if possible && end == RelocationEnd::Finish { to } else { from };
            self.slices[index].regions[region] = RegionState::Backed(stays_on);
        }
        if end == RelocationEnd::Refuse {
            self.capacity[to.index()] = self.used(to);
        }
        let plan = match end {
            RelocationEnd::Finish => self.pool.finish_relocation(relocation),
            RelocationEnd::Abort => self.pool.abort_relocation(relocation, false),
            RelocationEnd::Refuse => self.pool.abort_relocation(relocation, true),
        };
        self.adopt(plan);
    }
}
