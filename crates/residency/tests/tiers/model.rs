//! The model, and the walk over it.

use std::collections::HashMap;
use std::time::Duration;

use vram_gpu::{DeviceAddress, DeviceRange, GpuId};
use vram_pool::SliceId;
use vram_residency::{AllocateError, MemoryLease};
use vram_transfer::{Outcome, TransferError};

use crate::rig::{MIB, Rig, SHARD, Tiers};
use crate::sharing::{Export, Shown, Wanted};

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
pub(crate) struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// A byte as it must be read: `None` if anything may be there.
pub(crate) type Cell = Option<u8>;

/// Whose bytes: those of an allocation that was made as this one.
pub(crate) type Content = u64;

/// Some bytes of an allocation: of which, from where on, and how many.
pub(crate) type Part = (usize, usize, usize);

pub(crate) struct Held {
    pub(crate) lease: MemoryLease,
    pub(crate) len: usize,
    /// Its own bytes.
    pub(crate) content: Content,
    /// The bytes it shows instead, where it has no copy of them.
    pub(crate) shown: Option<Shown>,
}

pub(crate) struct Tenant {
    pub(crate) id: SliceId,
    pub(crate) held: Vec<Held>,
}

pub(crate) struct Walk {
    pub(crate) rig: Rig,
    pub(crate) dice: Dice,
    mode: Mode,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) contents: HashMap<Content, Vec<Cell>>,
    next_content: Content,
    pub(crate) exports: Vec<Export>,
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
            Tenant { id, held: Vec::new() }
        })
        .into();
    let mut walk = Walk {
        rig,
        dice,
        mode,
        tenants,
        contents: HashMap::new(),
        next_content: 0,
        exports: Vec::new(),
        lost: 0,
    };
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
            0..10 => self.alloc(index),
            10..20 => self.free(index),
            20..44 => self.write(index),
            44..67 => self.read(index),
            67..77 => self.copy(index),
            77..85 => self.fill(index),
            85..87 => self.check_all(index),
            87..96 => self.share(index),
            _ => self.misfortune(),
        }
    }

    fn alloc(&mut self, index: usize) {
        let id = self.tenants[index].id;
        let longest = if self.dice.one_in(4) { 8 * SHARD } else { SHARD };
        let length = 1 + self.dice.below(longest);
        match self.rig.alloc(id, length) {
            Ok(lease) => self.hold(index, lease, length as usize, None),
            // Room in sum there is; that of the limit may be in pieces.
            Err(AllocateError::Pool(_) | AllocateError::ReleaseStuck { .. }) => {}
            Err(error) => assert!(self.mode != Mode::Calm, "{error}"),
        }
    }

    pub(crate) fn hold(&mut self, index: usize, lease: MemoryLease, len: usize, shown: Option<Shown>) {
        let content = self.next_content;
        self.next_content += 1;
        self.contents.insert(content, vec![Some(0); len]);
        self.tenants[index].held.push(Held { lease, len, content, shown });
    }

    fn free(&mut self, index: usize) {
        if let Some(nth) = self.pick(index) {
            let held = self.tenants[index].held.swap_remove(nth);
            self.contents.remove(&held.content);
            self.exports.retain(|export| export.content != held.content);
        }
    }

    pub(crate) fn pick(&mut self, index: usize) -> Option<usize> {
        let count = self.tenants[index].held.len() as u64;
        (count > 0).then(|| self.dice.below(count) as usize)
    }

    /// Some part of an allocation: which, and offset and length.
    pub(crate) fn pick_part(&mut self, index: usize) -> Option<Part> {
        let nth = self.pick(index)?;
        let len = self.tenants[index].held[nth].len as u64;
        let offset = self.dice.below(len);
        let most = match self.dice.below(10) {
            0..6 => 4096,
            6..9 => MIB,
            _ => u64::MAX,
        };
        let part = 1 + self.dice.below((len - offset).min(most));
        Some((nth, offset as usize, part as usize))
    }

    pub(crate) fn range(&self, index: usize, (nth, offset, len): Part) -> DeviceRange {
        let start = self.tenants[index].held[nth].lease.range().start;
        DeviceRange { start: DeviceAddress(start.0 + offset as u64), len_bytes: len as u64 }
    }

    /// Changes cells as an outcome says: those that surely moved are the new ones, the others may be either.
    fn note(&mut self, index: usize, part: Part, new: &[Cell], outcome: &Outcome) {
        self.note_copies(index, part);
        let moved = if outcome.result.is_ok() { new.len() } else { outcome.moved_bytes as usize };
        let refused = matches!(outcome.result, Err(TransferError::Revoked | TransferError::ReadOnly));
        let untouched = refused || matches!(outcome.result, Err(TransferError::NoRoom)) && moved == 0;
        let mut new = new.iter().enumerate();
        for (content, span) in self.segments(index, part) {
            let Some(cells) = self.contents.get_mut(&content) else { break };
            for (cell, (at, new)) in cells[span].iter_mut().zip(&mut new) {
                if at < moved {
                    *cell = *new;
                } else if !untouched && *cell != *new {
                    *cell = None;
                }
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
        let wanted = self.wanted(index, part, true);
        let outcome = self.rig.write(self.tenants[index].id, self.range(index, part), &bytes);
        self.allowed(wanted, &outcome);
        let new: Vec<Cell> = bytes.into_iter().map(Some).collect();
        self.note(index, part, &new, &outcome);
    }

    fn read(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        self.check(index, part);
    }

    fn check_all(&mut self, index: usize) {
        let Some(nth) = self.pick(index) else { return };
        let len = self.tenants[index].held[nth].len;
        self.check(index, (nth, 0, len));
    }

    fn check(&mut self, index: usize, part: Part) {
        let wanted = self.wanted(index, part, false);
        let (outcome, bytes) = self.rig.read(self.tenants[index].id, self.range(index, part));
        self.allowed(wanted, &outcome);
        let sure = if outcome.result.is_ok() { bytes.len() } else { outcome.moved_bytes as usize };
        let mut bytes = bytes.iter().take(sure).enumerate();
        for (content, span) in self.segments(index, part) {
            let Some(cells) = self.contents.get_mut(&content) else { break };
            for (cell, (at, read)) in cells[span].iter_mut().zip(&mut bytes) {
                assert!(
                    cell.is_none_or(|cell| cell == *read),
                    "byte {at} of {part:?} is {read}, not {cell:?}"
                );
                *cell = Some(*read);
            }
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
        if self.overlap(index, to, from) {
            return;
        }
        let wanted = self.wanted(index, from, false).or(self.wanted(index, to, true));
        let outcome = self.rig.copy(self.tenants[index].id, to_range, from_range);
        self.allowed(wanted, &outcome);
        let new = self.seen(index, from);
        self.note(index, to, &new, &outcome);
    }

    fn fill(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        let byte = self.dice.next() as u8;
        let wanted = self.wanted(index, part, true);
        let outcome = self.rig.fill(self.tenants[index].id, self.range(index, part), byte);
        self.allowed(wanted, &outcome);
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
                let len = self.tenants[index].held[nth].len;
                self.check(index, (nth, 0, len));
            }
        }
        self.tenants.iter_mut().for_each(|tenant| tenant.held.clear());
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

impl Walk {
    /// Checks that a request ended as it may.
    fn allowed(&self, wanted: Wanted, outcome: &Outcome) {
        match (self.mode, &outcome.result) {
            (_, Ok(())) => assert_eq!(wanted, Wanted::default()),
            (_, Err(TransferError::Revoked)) => assert!(wanted.revoked, "nothing was revoked"),
            (_, Err(TransferError::ReadOnly)) => assert!(wanted.read_only, "all may be written to"),
            (Mode::Calm, Err(error)) => panic!("nothing went wrong, and yet: {error:?}"),
            (Mode::Failing, Err(TransferError::DataLost)) => panic!("bytes were lost without damage"),
            (_, Err(TransferError::Mismatch | TransferError::Cancelled | TransferError::HostMemoryLost)) => {
                panic!("{outcome:?}")
            }
            (_, Err(_)) => {}
        }
    }
}
