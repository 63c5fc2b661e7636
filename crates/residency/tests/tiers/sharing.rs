//! Tenants that show each other bytes, in the walk.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use vram_pool::{Audience, RegionIndex, Rights, ShareError, ShareId};
use vram_residency::{AttachError, Revocation};

use crate::model::{Cell, Content, Part, Walk};
use crate::rig::SHARD;

/// What may be attached.
#[derive(Clone, Copy)]
pub(crate) struct Export {
    share: ShareId,
    pub(crate) content: Content,
    offset: usize,
    len: usize,
    rights: Rights,
}

/// What an allocation shows.
pub(crate) struct Shown {
    export: Export,
    /// Regions that have a copy of it.
    private: BTreeSet<u64>,
}

/// What is asked of bytes of another that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) revoked: bool,
    pub(crate) read_only: bool,
}

impl Wanted {
    pub(crate) fn or(self, other: Self) -> Self {
        Self { revoked: self.revoked || other.revoked, read_only: self.read_only || other.read_only }
    }
}

impl Walk {
    pub(crate) fn share(&mut self, index: usize) {
        match self.dice.below(10) {
            0..4 => self.export(index),
            4..9 => self.attach(index),
            _ => self.revoke(),
        }
    }

    fn export(&mut self, index: usize) {
        let Some(part) = self.pick_part(index) else { return };
        let (nth, offset, _) = part;
        let held = &self.tenants[index].held[nth];
        let offset = offset / 256 * 256;
        let all = held.len - offset;
        let len = if self.dice.one_in(2) { all } else { part.2.min(all) };
        let rights = [Rights::Read, Rights::ReadWrite, Rights::CopyOnWrite, Rights::CopyOnWrite];
        let rights = rights[self.dice.below(4) as usize];
        let (content, owned) =
            (self.tenants[index].held[nth].content, self.tenants[index].held[nth].shown.is_none());
        let range = self.range(index, (nth, offset, len));
        match self.rig.residency.export(self.tenants[index].id, range, rights, Audience::All) {
            // What has copies of all it is shown is its own.
            Ok(share) if owned => self.exports.push(Export { share, content, offset, len, rights }),
            Ok(share) => drop(self.rig.residency.revoke(share, Duration::ZERO).unwrap()),
            Err(error) => assert!(!owned && matches!(error, ShareError::NotOwned { .. }), "{error}"),
        }
    }

    fn attach(&mut self, index: usize) {
        if self.exports.is_empty() {
            return;
        }
        let export = self.exports[self.dice.below(self.exports.len() as u64) as usize];
        match self.rig.residency.attach(self.tenants[index].id, export.share) {
            Ok(lease) => {
                let shown = Shown { export, private: BTreeSet::new() };
                self.hold(index, lease, export.len, Some(shown));
            }
            Err(AttachError::Share(ShareError::Room(_)) | AttachError::ReleaseStuck { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn revoke(&mut self) {
        if self.exports.is_empty() {
            return;
        }
        let export = self.exports.swap_remove(self.dice.below(self.exports.len() as u64) as usize);
        let revoked = self.rig.residency.revoke(export.share, Duration::from_secs(10));
        assert_eq!(revoked, Ok(Revocation::Complete), "nobody uses anything");
    }

    /// A part, cut at the edges of regions: the region, and what is seen of it.
    fn pieces(&self, index: usize, (nth, offset, len): Part) -> Vec<(u64, Range<usize>)> {
        let start = self.tenants[index].held[nth].lease.range().start.0;
        let mut pieces = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let region = (start + at as u64) / SHARD;
            let edge = ((region + 1) * SHARD - start) as usize;
            pieces.push((region, at..edge.min(end)));
            at = edge;
        }
        pieces
    }

    /// Where the cells of a part are.
    pub(crate) fn segments(&self, index: usize, part: Part) -> Vec<(Content, Range<usize>)> {
        let held = &self.tenants[index].held[part.0];
        let segment = |(region, span): (u64, Range<usize>)| match &held.shown {
            Some(Shown { export, private }) if !private.contains(&region) => {
                (export.content, span.start + export.offset..span.end + export.offset)
            }
            _ => (held.content, span),
        };
        self.pieces(index, part).into_iter().map(segment).collect()
    }

    /// What should be read in a part; anything where nothing can be.
    pub(crate) fn seen(&self, index: usize, part: Part) -> Vec<Cell> {
        let cells = |(content, span): (Content, Range<usize>)| match self.contents.get(&content) {
            Some(cells) => cells[span].to_vec(),
            None => vec![None; span.len()],
        };
        self.segments(index, part).into_iter().flat_map(cells).collect()
    }

    pub(crate) fn overlap(&self, index: usize, a: Part, b: Part) -> bool {
        let (a, b) = (self.segments(index, a), self.segments(index, b));
        a.iter().any(|(content, span)| {
            b.iter().any(|(other, with)| content == other && span.start < with.end && with.start < span.end)
        })
    }

    /// What is refused of an access to a part.
    pub(crate) fn wanted(&self, index: usize, part: Part, writes: bool) -> Wanted {
        let Some(Shown { export, private }) = &self.tenants[index].held[part.0].shown else {
            return Wanted::default();
        };
        if self.pieces(index, part).iter().all(|(region, _)| private.contains(region)) {
            return Wanted::default();
        }
        let revoked = !self.exports.iter().any(|other| other.share == export.share);
        Wanted { revoked, read_only: writes && export.rights == Rights::Read }
    }

    /// Notes which regions of a part that was written to have copies since.
    pub(crate) fn note_copies(&mut self, index: usize, part: Part) {
        let tenant = &self.tenants[index];
        let held = &tenant.held[part.0];
        let Some(Shown { private, .. }) = &held.shown else { return };
        let (nth, all) = (part.0, self.pieces(index, (part.0, 0, held.len)));
        let pool = self.rig.residency.pool();
        let band = pool.band(tenant.id).unwrap().start.0 / SHARD;
        let is_new = |(region, _): &(u64, Range<usize>)| {
            let range = pool.region_range(tenant.id, RegionIndex((region - band) as u32)).unwrap();
            let own = pool.extents(tenant.id, range).all(|extent| extent.shown.is_none());
            !private.contains(region) && own
        };
        let new: Vec<_> = all.into_iter().filter(is_new).collect();
        drop(pool);
        for (region, span) in new {
            let cells = self.seen(index, (nth, span.start, span.len()));
            let held = &mut self.tenants[index].held[nth];
            held.shown.as_mut().unwrap().private.insert(region);
            self.contents.get_mut(&held.content).unwrap()[span].copy_from_slice(&cells);
        }
    }
}
