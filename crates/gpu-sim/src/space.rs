//! Device addresses: bands, what is mapped in them, and safe ways for workers to touch it.
//!
//! A worker holds a [`Lease`] on the mappings it touches, for one chunk at a time; taking a mapping out waits for its
//! leases. So even a caller who unmaps what is being copied gets an error at the event and no fault.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vram_gpu::{Bands, DeviceAddress, DeviceRange, GpuError, GpuSet, Mapping, Resolved};

use crate::config::GRANULARITY_BYTES;
use crate::memory::Reservation;
use crate::shards::ShardMemory;

/// The device address space of a backend.
#[derive(Debug)]
pub(crate) struct Space {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bands: Bands,
    reservations: BTreeMap<DeviceAddress, Arc<Reservation>>,
    mapped: HashMap<DeviceAddress, Arc<Mapped>>,
}

/// A shard in a band: keeps its memory, counts who is touching it.
#[derive(Debug)]
struct Mapped {
    _memory: Arc<ShardMemory>,
    reservation: Arc<Reservation>,
    leases: Mutex<usize>,
    idle: Condvar,
}

/// Leave to touch a range until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(Vec<Arc<Mapped>>);

impl Drop for Lease {
    fn drop(&mut self) {
        for mapped in &self.0 {
            let mut leases = mapped.leases.lock().unwrap_or_else(PoisonError::into_inner);
            *leases = leases.saturating_sub(1);
            mapped.idle.notify_all();
        }
    }
}

impl Space {
    pub(crate) fn new() -> Self {
        let state = State {
            bands: Bands::new(GRANULARITY_BYTES),
            reservations: BTreeMap::new(),
            mapped: HashMap::new(),
        };
        Self { state: Mutex::new(state) }
    }

    pub(crate) fn reserve(&self, len_bytes: u64, alignment_bytes: u64) -> Result<DeviceRange, GpuError> {
        self.state().bands.check_reservation(0, len_bytes, alignment_bytes)?;
        let reservation = Reservation::anywhere(len_bytes, alignment_bytes.max(GRANULARITY_BYTES))
            .map_err(|_no_room| GpuError::OutOfAddressSpace { len_bytes })?;
        Ok(self.keep(reservation))
    }

    pub(crate) fn reserve_at(&self, range: DeviceRange) -> Result<(), GpuError> {
        self.state().bands.check_reservation(range.start.0, range.len_bytes, 1)?;
        let reservation = Reservation::at(range)
            .map_err(|_taken| GpuError::OutOfAddressSpace { len_bytes: range.len_bytes })?;
        self.keep(reservation);
        Ok(())
    }

    fn keep(&self, reservation: Reservation) -> DeviceRange {
        let range = reservation.range();
        let mut state = self.state();
        state.bands.insert_band(range);
        state.reservations.insert(range.start, Arc::new(reservation));
        range
    }

    pub(crate) fn free(&self, band: DeviceRange) -> Result<(), GpuError> {
        let mut state = self.state();
        state.bands.claim_band(band)?;
        let reservation = state.reservations.remove(&band.start);
        drop(state);
        drop(reservation);
        Ok(())
    }

    pub(crate) fn map(
        &self,
        at: DeviceAddress,
        memory: Arc<ShardMemory>,
        shard: u64,
    ) -> Result<(), GpuError> {
        let range = DeviceRange { start: at, len_bytes: memory.file.len_bytes };
        let reservation = {
            let mut state = self.state();
            // A band and its reservation begin at the same address, so the one that holds `at` is the last before.
            let holding =
                state.reservations.range(..=at).next_back().map(|(_, reservation)| Arc::clone(reservation));
            let Some(reservation) = holding.filter(|reservation| reservation.range().contains(&range)) else {
                let problem = "outside every band";
                return Err(GpuError::BadRange { start: at, len_bytes: range.len_bytes, problem });
            };
            state.bands.claim_map(range, memory.file.gpu, shard)?;
            reservation
        };
        // SAFETY: the claim succeeded, so the range lies in this reservation of ours, nothing is mapped there, and
        // nobody else can map there before it is settled or forgotten.
        let outcome = unsafe { memory.file.map_at(at) };
        let mut state = self.state();
        match outcome {
            Ok(()) => {
                let mapped =
                    Mapped { _memory: memory, reservation, leases: Mutex::new(0), idle: Condvar::new() };
                state.mapped.insert(at, Arc::new(mapped));
                state.bands.settle(range);
                Ok(())
            }
            Err(error) => {
                state.bands.forget(range);
                Err(driver("map", &error))
            }
        }
    }

    pub(crate) fn set_access(&self, range: DeviceRange, gpus: GpuSet) -> Result<(), GpuError> {
        self.state().bands.set_access(range, gpus)
    }

    /// The whole shards that make up a range.
    pub(crate) fn whole(&self, range: DeviceRange) -> Result<Vec<Mapping>, GpuError> {
        self.state().bands.whole(range)
    }

    pub(crate) fn unmap(&self, range: DeviceRange) -> Result<(), GpuError> {
        let leaving: Vec<(DeviceRange, Arc<Mapped>)> = {
            let mut state = self.state();
            let found = state.bands.claim_unmap(range)?;
            found
                .iter()
                .filter_map(|mapping| Some((mapping.range, state.mapped.remove(&mapping.range.start)?)))
                .collect()
        };
        for (part, mapped) in &leaving {
            let mut leases = mapped.leases.lock().unwrap_or_else(PoisonError::into_inner);
            while *leases > 0 {
                leases = mapped.idle.wait(leases).unwrap_or_else(PoisonError::into_inner);
            }
            drop(leases);
            // SAFETY: the part was mapped by us inside this reservation; claimed as it is, nobody can get a new
            // lease on it, and the last one has just gone.
            if let Err(error) = unsafe { mapped.reservation.clear(*part) } {
                // Out of kernel memory for mappings: everything stays as it was, as far as it is not gone.
                let mut state = self.state();
                for (part, mapped) in &leaving {
                    state.mapped.insert(part.start, Arc::clone(mapped));
                }
                state.bands.settle(range);
                return Err(driver("unmap", &error));
            }
        }
        self.state().bands.forget(range);
        Ok(())
    }

    pub(crate) fn resolve(&self, range: DeviceRange) -> Result<Resolved, GpuError> {
        self.state().bands.resolve(range)
    }

    /// Resolves a range and takes a lease on it.
    pub(crate) fn lease(&self, range: DeviceRange) -> Result<(Resolved, Lease), GpuError> {
        let state = self.state();
        let resolved = state.bands.resolve(range)?;
        let touched =
            state.bands.covering(range)?.filter_map(|mapping| state.mapped.get(&mapping.range.start));
        let touched: Vec<Arc<Mapped>> = touched.cloned().collect();
        for mapped in &touched {
            let mut leases = mapped.leases.lock().unwrap_or_else(PoisonError::into_inner);
            *leases = leases.saturating_add(1);
        }
        Ok((resolved, Lease(touched)))
    }

    /// Bands and mappings.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.bands.band_count(), state.bands.mapping_count())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn driver(call: &'static str, error: &io::Error) -> GpuError {
    GpuError::Driver { call, reason: error.to_string() }
}
