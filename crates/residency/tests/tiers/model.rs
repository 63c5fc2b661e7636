//! The model, and the walk over it.

use std::time::Duration;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};
use vram_pool::SliceId;
use vram_residency::{AllocateError, MemoryLease};
use vram_transfer::{Outcome, TransferError};

use crate::rig::{MIB, Rig, SHARD, Tiers};

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Calm,
    /// Stores and copies fail; no byte may be lost.
    Failing,
    /// Also bytes are damaged and GPUs lost; no wrong byte may be given out.
    Losing,
}

/// Numbers that are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// A byte as it must be read: `None` if anything may be there.
type Cell = Option<u8>;

struct Held {
    lease: MemoryLease,
    bytes: Vec<Cell>,
}

struct Tenant {
    id: SliceId,
    limit: u64,
    held: Vec<Held>,
}

struct Walk {
    rig: Rig,
    dice: Dice,
    mode: Mode,
    tenants: Vec<Tenant>,
    lost: u16,
}

/// Takes so many random steps.
pub(crate) fn walk(seed: u64, steps: u64, mode: Mode) {
    let mut dice = Dice(seed | 1);
    let tiers = Tiers {
        host: dice.below(6),
        // Promises more than it holds of what cannot be compressed.
        compressed: if mode == Mode::Calm { 0 } else { dice.below(6) },
        disk: dice.below(8),
        remote: 8 + dice.below(8),
    };
    println!("{tiers:?}");
    // 16 shards.
    let rig = Rig::new("4x8MiB,fresh=dirty", tiers);
    let tenants = [(10, 4), (16, 0), (24, 2)]
        .map(|(limit, guarantee)| {
            let id = rig.slice(&format!("s{limit}"), limit * SHARD, guarantee * SHARD);
            Tenant { id, limit: limit * SHARD, held: Vec::new() }
        })
        .into();
    let mut walk = Walk { rig, dice, mode, tenants, lost: 0 };
    for step in 0..steps {
        walk.step();
        if step % 64 == 0 {
            let verdict = walk.rig.residency.pool().verify();
            assert_eq!(verdict.err().map(|violation| violation.to_string()), None, "after step {step}");
        }
    }
    walk.end();
}

impl Walk {
    fn step(&mut self) {
        let index = self.dice.below(self.tenants.len() as u64) as usize;
        match self.dice.below(100) {
            0..12 => self.alloc(index),
            12..20 => self.free(index),
            20..45 => self.write(index),
            45..75 => self.read(index),
            75..85 => self.copy(index),
            85..93 => self.fill(index),
            93..96 => self.check_all(index),
            _ => self.misfortune(),
        }
    }

    fn alloc(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let longest = if self.dice.one_in(4) { 8 * SHARD } else { SHARD };
        let length = 1 + self.dice.below(longest);
        let used: u64 = tenant.held.iter().map(|held| held.bytes.len() as u64).sum();
        match self.rig.alloc(tenant.id, length) {
            Ok(lease) => tenant.held.push(Held { lease, bytes: vec![Some(0); length as usize] }),
            Err(AllocateError::Pool(_) | AllocateError::ReleaseStuck { .. }) => {
                // Room in sum there is; that of the limit may be in pieces.
                let _ = (used, tenant.limit);
            }
            Err(error) => assert!(self.mode != Mode::Calm, "{error}"),
        }
    }

    fn free(&mut self, index: usize) {
        if let Some(nth) = self.pick(index) {
            self.tenants[index].held.swap_remove(nth);
        }
    }

    fn pick(&mut self, index: usize) -> Option<usize> {
        let count = self.tenants[index].held.len() as u64;
        (count > 0).then(|| self.dice.below(count) as usize)
    }

    /// Some part of an allocation: which, and offset and length.
    fn pick_part(&mut self, index: usize) -> Option<(usize, usize, usize)> {
        let nth = self.pick(index)?;
        let len = self.tenants[index].held[nth].bytes.len() as u64;
        let offset = self.dice.below(len);
        let most = match self.dice.below(10) {
            0..6 => 4096,
            6..9 => MIB,
            _ => u64::MAX,
        };
        let part = 1 + self.dice.below((len - offset).min(most));
        Some((nth, offset as usize, part as usize))
    }

    fn range(&self, index: usize, (nth, offset, len): (usize, usize, usize)) -> DeviceRange {
        let start = self.tenants[index].held[nth].lease.range().start;
        DeviceRange { start: DeviceAddress(start.0 + offset as u64), len_bytes: len as u64 }
    }

    fn cells(&mut self, index: usize, (nth, offset, len): (usize, usize, usize)) -> &mut [Cell] {
        &mut self.tenants[index].held[nth].bytes[offset..offset + len]
    }

    /// Changes cells as an outcome says: those that surely moved are the new ones, the others may be either.
    fn note(&mut self, index: usize, part: (usize, usize, usize), new: &[Cell], outcome: &Outcome) {
        let mode = self.mode;
        allowed(mode, &outcome.result);
        let moved = if outcome.result.is_ok() { new.len() } else { outcome.moved_bytes as usize };
        let untouched = matches!(outcome.result, Err(TransferError::NoRoom)) && moved == 0;
        for (at, (cell, new)) in self.cells(index, part).iter_mut().zip(new).enumerate() {
            if at < moved {
                *cell = *new;
            } else if !untouched && *cell != *new {
                *cell = None;
            }
        }
    }

    fn write(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        // Numbers, zeros, and noise nobody can compress.
        let kind = self.dice.below(3);
        let bytes: Vec<u8> = (0..part.2)
            .map(|at| match kind {
                0 => 0,
                1 => (at / 64) as u8,
                _ => self.dice.next() as u8,
            })
            .collect();
        let outcome = self.rig.write(self.tenants[index].id, self.range(index, part), &bytes);
        let new: Vec<Cell> = bytes.into_iter().map(Some).collect();
        self.note(index, part, &new, &outcome);
    }

    fn read(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        self.check(index, part);
    }

    fn check_all(&mut self, index: usize) {
        let Some(nth) = self.pick(index) else { return };
        let len = self.tenants[index].held[nth].bytes.len();
        self.check(index, (nth, 0, len));
    }

    fn check(&mut self, index: usize, part: (usize, usize, usize)) {
        let (outcome, bytes) = self.rig.read(self.tenants[index].id, self.range(index, part));
        allowed(self.mode, &outcome.result);
        let sure = if outcome.result.is_ok() { bytes.len() } else { outcome.moved_bytes as usize };
        let cells = self.cells(index, part);
        for (at, (cell, read)) in cells.iter_mut().zip(&bytes).take(sure).enumerate() {
            assert!(cell.is_none_or(|cell| cell == *read), "byte {at} of {part:?} is {read}, not {cell:?}");
            *cell = Some(*read);
        }
    }

    fn copy(&mut self, index: usize) {
        let (Some(to), Some(from)) = (self.pick_part(index), self.pick_part(index)) else { return };
        if to.0 == from.0 {
            return;
        }
        let len = to.2.min(from.2);
        let (to, from) = ((to.0, to.1, len), (from.0, from.1, len));
        let (to_range, from_range) = (self.range(index, to), self.range(index, from));
        let outcome = self.rig.copy(self.tenants[index].id, to_range, from_range);
        let new = self.cells(index, from).to_vec();
        self.note(index, to, &new, &outcome);
    }

    fn fill(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        let byte = self.dice.next() as u8;
        let outcome = self.rig.fill(self.tenants[index].id, self.range(index, part), byte);
        self.note(index, part, &vec![Some(byte); part.2], &outcome);
    }

    fn misfortune(&mut self) {
        if self.mode == Mode::Calm {
            return;
        }
        let store = self.dice.below(self.rig.faults.len() as u64) as usize;
        let nth = 1 + self.dice.below(4);
        let faults = self.rig.faults[store].clone();
        match self.dice.below(if self.mode == Mode::Losing { 9 } else { 6 }) {
            0 => faults.fail_write(nth),
            1 => faults.fail_read(nth),
            2 => faults.fail_remove(nth),
            3 => faults.fill_up(true),
            4 => self.rig.sim.faults().fail_copy(nth),
            5 => self.rig.faults.iter().for_each(|faults| faults.clear()),
            6 => faults.damage_write(nth),
            7 => faults.damage_read(nth),
            _ if self.lost < 2 && self.dice.one_in(20) => {
                self.rig.sim.faults().lose_gpu(GpuId(self.lost));
                self.lost += 1;
            }
            _ => faults.cut_read(nth),
        }
    }

    /// Everything is read once more, and given back.
    fn end(mut self) {
        self.rig.faults.iter().for_each(|faults| faults.clear());
        self.rig.sim.faults().clear();
        // Tiers that failed are left alone for a while; reading needs none.
        for index in 0..self.tenants.len() {
            for nth in 0..self.tenants[index].held.len() {
                let len = self.tenants[index].held[nth].bytes.len();
                self.check(index, (nth, 0, len));
            }
            self.tenants[index].held.clear();
        }
        for tenant in &self.tenants {
            let released = self.rig.residency.wait_released(tenant.id, Duration::from_secs(30));
            assert!(released, "{:?}", self.rig.residency.pool().usage(tenant.id));
        }
        let usage = |tenant: &Tenant| self.rig.residency.pool().usage(tenant.id).unwrap();
        assert!(
            self.tenants
                .iter()
                .all(|tenant| usage(tenant).stored_bytes == 0 && usage(tenant).backed_bytes == 0)
        );
        if self.lost == 0 {
            let counts = self.rig.sim.counts();
            assert_eq!((counts.shards, counts.mappings), (0, 0));
        }
        for store in &self.rig.stores {
            assert_eq!(store.meter().regions, 0, "{} leaks", store.kind());
        }
        let verdict = self.rig.residency.pool().verify();
        assert_eq!(verdict.err().map(|violation| violation.to_string()), None);
    }
}

fn allowed(mode: Mode, result: &Result<(), TransferError>) {
    match (mode, result) {
        (_, Ok(())) => {}
        (Mode::Calm, Err(error)) => panic!("nothing went wrong, and yet: {error:?}"),
        (Mode::Failing, Err(TransferError::DataLost)) => panic!("bytes were lost without damage"),
        (_, Err(TransferError::Mismatch | TransferError::Cancelled | TransferError::HostMemoryLost)) => {
            panic!("{result:?}")
        }
        (_, Err(_)) => {}
    }
}
