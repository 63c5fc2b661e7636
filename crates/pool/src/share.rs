//! Shares: what slices export, and others attach.
//!
//! An export is a range of one allocation. A slice that attaches it gets an allocation of its own, whose regions show the
//! exported bytes: they are where the owner's region is, and moved, evicted and promoted with that. Whatever is beside
//! the exported bytes in these regions cannot be reached, and is not given out.

use std::collections::BTreeSet;
use std::fmt;

use vram_gpu::DeviceRange;

use crate::attachment::{Attachment, Source};
use crate::slice::Slice;
use crate::span::{GRANULE_BYTES, Span};
use crate::{AllocError, Allocation, Pool, RegionIndex, ShareError, SliceId, Unpinned};

/// Number of a share in its pool; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(pub u64);

impl fmt::Display for ShareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share{}", self.0)
    }
}

/// What those who attach a share may do with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read them.
    Read,
    /// Read and write them: the owner's, which all see.
    ReadWrite,
    /// Read them, and write to a copy of their own that a region gets with the first write to it.
    CopyOnWrite,
}

/// Who may attach a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Every slice.
    All,
    /// These.
    Slices(BTreeSet<SliceId>),
}

impl Audience {
    fn admits(&self, slice: SliceId) -> bool {
        match self {
            Self::All => true,
            Self::Slices(slices) => slices.contains(&slice),
        }
    }
}

/// A share in the books.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) owner: SliceId,
    pub(crate) span: Span,
    pub(crate) rights: Rights,
    pub(crate) audience: Audience,
    pub(crate) is_revoked: bool,
    /// Pins of the owner's regions by those it is shown to.
    pub(crate) uses: u32,
    /// Who shows it, with the first region there.
    pub(crate) attached: BTreeSet<(SliceId, RegionIndex)>,
}

/// A share, for those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReport {
    /// Whose bytes they are.
    pub owner: SliceId,
    /// Which.
    pub range: DeviceRange,
    /// What may be done with them.
    pub rights: Rights,
    /// Allocations that show some of them.
    pub attached: usize,
    /// Whether anybody to whom they are shown uses them just now.
    pub in_use: bool,
    /// Whether that ends as soon as all uses have: new ones are refused.
    pub is_revoked: bool,
}

impl Pool {
    /// Lets others attach a range that lies in one live allocation of a slice, and begins at a multiple of 256 bytes.
    pub fn export(
        &mut self,
        owner: SliceId,
        range: DeviceRange,
        rights: Rights,
        audience: Audience,
    ) -> Result<ShareId, ShareError> {
        let slice = self.slices.get_mut(&owner).ok_or(ShareError::NoSuchSlice { slice: owner })?;
        let allocation = slice.allocation_at(range.start.0).map(Span::of);
        let (span, is_whole) = (Span::of(range), Span::of(range).len_bytes() == range.len_bytes);
        let inside = allocation.is_some_and(|allocation| allocation.contains(span));
        if !inside || !is_whole || span.is_empty() || !span.start.is_multiple_of(GRANULE_BYTES) {
            return Err(ShareError::BadRange { slice: owner, range });
        }
        if slice.band.touched(span).any(|region| slice.attachment(region).is_some()) {
            return Err(ShareError::NotOwned { slice: owner, range });
        }
        let id = ShareId(self.next_share);
        self.next_share = self.next_share.checked_add(1).ok_or(ShareError::OutOfShareIds)?;
        slice.exports.insert((span.start, id));
        let attached = BTreeSet::new();
        self.shares.insert(id, Share { owner, span, rights, audience, is_revoked: false, uses: 0, attached });
        Ok(id)
    }

    /// Gives a slice an allocation that shows what a share has, at the same place in its regions as the bytes have in the
    /// owner's. It is live at once, and freed as any other. [`AllocError::QuarantinePending`] is for asking again once
    /// memory was released.
    pub fn attach(&mut self, slice: SliceId, id: ShareId) -> Result<Allocation, ShareError> {
        let shard_bytes = self.shard_bytes;
        let share = self.shares.get(&id).filter(|share| !share.is_revoked);
        let share = share.ok_or(ShareError::NoSuchShare { share: id })?;
        if !share.audience.admits(slice) {
            return Err(ShareError::NotForSlice { share: id, slice });
        }
        let (owner, span, rights) = (share.owner, share.span, share.rights);
        let owner_band = &self.slices.get(&owner).ok_or(ShareError::NoSuchShare { share: id })?.band;
        let owner_first = owner_band.touched(span).next().ok_or(ShareError::NoSuchShare { share: id })?;
        let offset_bytes = span.start.saturating_sub(owner_band.region_span(owner_first).start);
        let regions = owner_band.touched_count(span);

        let found = self.slices.get_mut(&slice).ok_or(ShareError::NoSuchSlice { slice })?;
        let requested_bytes = span.len_bytes();
        let pending = found.is_releasing().then_some(AllocError::QuarantinePending { requested_bytes });
        if regions > found.limit_shards.saturating_sub(found.footprint()) {
            return Err(pending.unwrap_or_else(|| found.over_limit(shard_bytes, requested_bytes)).into());
        }
        let Some(first) = found.band.first_unbacked(regions) else {
            return Err(pending.unwrap_or(AllocError::Fragmented { requested_bytes }).into());
        };
        let start = found.band.region_span(first).start.saturating_add(offset_bytes);
        let here = Span::new(start, span.len_bytes());
        let reserved = Span::reserved_by(here.range());
        found.show(Attachment {
            share: id,
            owner,
            rights,
            span: here,
            owner_start: span.start,
            first,
            owner_first,
            regions,
            showing: regions,
            is_revoked: false,
        });
        found.map.insert(reserved, here.len_bytes());
        found.occupy(reserved);
        if let Some(share) = self.shares.get_mut(&id) {
            share.attached.insert((slice, first));
        }
        Ok(Allocation { range: here.range() })
    }

    /// Ends access to a share. Whoever uses it just now goes on; who asks from now on is refused. Copies that became
    /// private stay. Freeing the exported allocation does the same.
    pub fn revoke(&mut self, id: ShareId) -> Result<(), ShareError> {
        let share = self.shares.get_mut(&id).filter(|share| !share.is_revoked);
        let share = share.ok_or(ShareError::NoSuchShare { share: id })?;
        share.is_revoked = true;
        for (slice, first) in &share.attached {
            if let Some(slice) = self.slices.get_mut(slice) {
                slice.hide(*first);
            }
        }
        self.drop_if_over(id);
        Ok(())
    }

    /// What is known of a share; nothing if there is none of this number, or it was revoked and nothing is left of it.
    pub fn share(&self, id: ShareId) -> Option<ShareReport> {
        self.shares.get(&id).map(|share| ShareReport {
            owner: share.owner,
            range: share.span.range(),
            rights: share.rights,
            attached: share.attached.len(),
            in_use: share.uses > 0,
            is_revoked: share.is_revoked,
        })
    }

    /// What a slice exports, in order of address, also what was revoked and is still shown somewhere.
    pub fn exports(&self, slice: SliceId) -> impl Iterator<Item = ShareId> + '_ {
        self.slices.get(&slice).into_iter().flat_map(|slice| slice.exports.iter().map(|(_, share)| *share))
    }

    /// Whether a slice shows bytes of another.
    pub fn has_attached(&self, slice: SliceId) -> bool {
        self.slices.get(&slice).is_some_and(|slice| !slice.attachments.is_empty())
    }

    /// Revokes all that is exported of a span.
    pub(crate) fn revoke_within(&mut self, slice: SliceId, span: Span) {
        let Some(found) = self.slices.get(&slice) else { return };
        for share in found.exports_within(span).collect::<Vec<_>>() {
            // Those that were revoked before are refused.
            let _ = self.revoke(share);
        }
    }

    /// Whether others to whom something of a span is shown use it.
    pub(crate) fn is_used_within(&self, slice: &Slice, span: Span) -> bool {
        let in_use = |share| self.shares.get(&share).is_some_and(|share| share.uses > 0);
        slice.exports_within(span).any(in_use)
    }

    /// A region that is freed no longer shows anything.
    pub(crate) fn detach(&mut self, slice: SliceId, region: RegionIndex) {
        let Some(found) = self.slices.get_mut(&slice) else { return };
        let ended = found.stop_showing(region);
        found.unback(&mut self.gpus, region);
        self.end_attachment(slice, ended);
    }

    /// Nothing shows an attachment any more, if that is so.
    pub(crate) fn end_attachment(&mut self, slice: SliceId, ended: Option<Attachment>) {
        let Some(Attachment { share: id, first, .. }) = ended else { return };
        if let Some(share) = self.shares.get_mut(&id) {
            share.attached.remove(&(slice, first));
        }
        self.drop_if_over(id);
    }

    /// Pins the region that another one shows.
    pub(crate) fn begin_use(&mut self, source: Source) {
        if let Some(share) = self.shares.get_mut(&source.share) {
            share.uses = share.uses.saturating_add(1);
        }
        let owner = self.slices.get_mut(&source.slice);
        if let Some(region) = owner.and_then(|owner| owner.band.region_mut(source.region)) {
            region.pins = region.pins.saturating_add(1);
        }
    }

    /// Ends [`Self::begin_use`].
    pub(crate) fn end_use(&mut self, source: Source, unpinned: &mut Unpinned) {
        let owner = self.slices.get_mut(&source.slice);
        if let Some(region) = owner.and_then(|owner| owner.band.region_mut(source.region)) {
            unpinned.awaited |= region.unpin();
        }
        let Some(share) = self.shares.get_mut(&source.share) else { return };
        share.uses = share.uses.saturating_sub(1);
        if share.uses == 0 && share.is_revoked {
            unpinned.cut_off.push((share.owner, share.span.range()));
            self.drop_if_over(source.share);
        }
    }

    /// Forgets a share that was revoked and that nobody shows or uses any more.
    fn drop_if_over(&mut self, id: ShareId) {
        let over = |share: &&Share| share.is_revoked && share.uses == 0 && share.attached.is_empty();
        let Some(share) = self.shares.get(&id).filter(over) else { return };
        if let Some(owner) = self.slices.get_mut(&share.owner) {
            owner.exports.remove(&(share.span.start, id));
        }
        self.shares.remove(&id);
    }
}

impl Slice {
    fn exports_within(&self, span: Span) -> impl Iterator<Item = ShareId> + '_ {
        let within = (span.start, ShareId(0))..(span.end, ShareId(0));
        self.exports.range(within).map(|(_, share)| *share)
    }
}
