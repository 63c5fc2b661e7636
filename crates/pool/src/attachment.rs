//! Attachments: allocations of a slice that show bytes of another.

use std::collections::BTreeMap;

use vram_gpu::{DeviceAddress, GpuId};

use crate::slice::Slice;
use crate::span::Span;
use crate::{RegionIndex, RegionState, Rights, ShareId, SliceId};

/// An allocation that shows what another slice exports, at the same place in its regions. It is kept in mind while any of
/// them shows it, or did until it was revoked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    pub(crate) share: ShareId,
    pub(crate) owner: SliceId,
    pub(crate) rights: Rights,
    /// The exported bytes, as they are addressed here.
    pub(crate) span: Span,
    /// Where they begin in the owner's band.
    pub(crate) owner_start: u64,
    pub(crate) first: RegionIndex,
    pub(crate) owner_first: RegionIndex,
    /// Regions, those that became private too.
    pub(crate) regions: u32,
    /// Regions that did not become private.
    pub(crate) showing: u32,
    pub(crate) is_revoked: bool,
}

/// The region another one shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) share: ShareId,
    pub(crate) slice: SliceId,
    pub(crate) region: RegionIndex,
}

impl Attachment {
    /// What a region of it shows.
    pub(crate) fn source(&self, region: RegionIndex) -> Source {
        let offset = region.0.saturating_sub(self.first.0);
        let region = RegionIndex(self.owner_first.0.saturating_add(offset));
        Source { share: self.share, slice: self.owner, region }
    }

    /// Where in the owner's band the byte is that is shown at an address.
    pub(crate) fn owner_address(&self, address: u64) -> DeviceAddress {
        DeviceAddress(self.owner_start.saturating_add(address.saturating_sub(self.span.start)))
    }

    /// All regions of it, those that became private too.
    pub(crate) fn regions(&self) -> impl Iterator<Item = RegionIndex> + use<> {
        (self.first.0..self.first.0.saturating_add(self.regions)).map(RegionIndex)
    }

    /// What a region of it is that does not become private, or not yet.
    pub(crate) fn shown_state(&self) -> RegionState {
        if self.is_revoked { RegionState::Revoked } else { RegionState::Shared }
    }
}

/// The attachments of a slice, by their first region.
#[derive(Debug, Default)]
pub(crate) struct Attachments(BTreeMap<RegionIndex, Attachment>);

impl Attachments {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Attachment> + '_ {
        self.0.values()
    }

    pub(crate) fn insert(&mut self, attachment: Attachment) {
        self.0.insert(attachment.first, attachment);
    }

    pub(crate) fn remove(&mut self, first: RegionIndex) {
        self.0.remove(&first);
    }

    pub(crate) fn starting_at(&mut self, first: RegionIndex) -> Option<&mut Attachment> {
        self.0.get_mut(&first)
    }

    /// The attachment a region lies in that is shown.
    fn around(&self, region: RegionIndex) -> Option<&Attachment> {
        self.0.range(..=region).next_back().map(|(_, attachment)| attachment)
    }

    fn around_mut(&mut self, region: RegionIndex) -> Option<&mut Attachment> {
        self.0.range_mut(..=region).next_back().map(|(_, attachment)| attachment)
    }
}

impl Slice {
    /// The attachment a region belongs to, if it shows bytes of another slice.
    pub(crate) fn attachment(&self, region: RegionIndex) -> Option<&Attachment> {
        let is_shown = self.band.region(region).is_some_and(|region| region.state.is_shown());
        if is_shown { self.attachments.around(region) } else { None }
    }

    /// The region whose bytes another one shows, if it does.
    pub(crate) fn source(&self, region: RegionIndex) -> Option<Source> {
        self.attachment(region).map(|attachment| attachment.source(region))
    }

    /// Takes an attachment in, whose regions were unbacked.
    pub(crate) fn show(&mut self, attachment: Attachment) {
        for region in attachment.regions() {
            self.band.set_state(region, RegionState::Shared);
        }
        self.shown = self.shown.saturating_add(attachment.regions);
        self.attachments.insert(attachment);
    }

    /// What an attachment shows is revoked.
    pub(crate) fn hide(&mut self, first: RegionIndex) {
        let Some(attachment) = self.attachments.starting_at(first) else { return };
        attachment.is_revoked = true;
        for region in attachment.regions() {
            if self.band.region(region).is_some_and(|region| region.state == RegionState::Shared) {
                self.band.set_state(region, RegionState::Revoked);
            }
        }
    }

    /// A region no longer shows what it did, because it became private or is freed. Returns its attachment if that was
    /// the last of it.
    pub(crate) fn stop_showing(&mut self, region: RegionIndex) -> Option<Attachment> {
        let attachment = self.attachments.around_mut(region)?;
        attachment.showing = attachment.showing.saturating_sub(1);
        let ended = (attachment.showing == 0).then_some(*attachment)?;
        self.attachments.remove(ended.first);
        Some(ended)
    }

    /// A copy that was to become private does not: the region shows what it did.
    pub(crate) fn stay_shown(&mut self, region: RegionIndex) {
        let Some(state) = self.attachment(region).map(Attachment::shown_state) else { return };
        self.shown = self.shown.saturating_add(1);
        self.band.set_state(region, state);
    }

    /// Copies that were to become private do not, because their GPU is lost.
    pub(crate) fn lose_private_copies(&mut self, lost: GpuId) {
        if self.attachments.is_empty() {
            return;
        }
        let state = RegionState::Privatizing(Some(lost));
        let regions: Vec<_> =
            self.band.regions().filter(|(_, region)| region.state == state).map(|(index, _)| index).collect();
        for region in regions {
            self.stay_shown(region);
        }
    }
}
