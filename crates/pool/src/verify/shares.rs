//! The invariants of what slices show of each other.

use std::collections::BTreeMap;

use super::Violation;
use crate::attachment::Attachment;
use crate::share::Share;
use crate::slice::Slice;
use crate::span::Span;
use crate::{Pool, RegionState, ShareId};

impl Pool {
    /// Every share is shown by those it knows of, used by no others, and of an allocation that is live if it was not
    /// revoked.
    pub(super) fn verify_shares(&self) -> Result<(), Violation> {
        let mut uses: BTreeMap<ShareId, u32> = BTreeMap::new();
        let mut attached = 0usize;
        for slice in self.slices.values() {
            for attachment in slice.attachments.iter() {
                let id = attachment.share;
                let share = self.shares.get(&id).ok_or(Violation::Share { share: id })?;
                let shown = verify_attachment(slice, attachment, share)?;
                let sum = uses.entry(id).or_insert(0);
                *sum = sum.saturating_add(shown);
                attached = attached.saturating_add(1);
            }
            let known = |(start, id): &(u64, ShareId)| {
                self.shares.get(id).is_some_and(|share| share.owner == slice.id && share.span.start == *start)
            };
            if let Some((_, share)) = slice.exports.iter().find(|export| !known(export)) {
                return Err(Violation::Share { share: *share });
            }
        }
        for (id, share) in &self.shares {
            let owner = self.slices.get(&share.owner);
            let is_live = owner.is_some_and(|owner| {
                let around = owner.allocation_at(share.span.start).map(Span::of);
                around.is_some_and(|around| around.contains(share.span))
            });
            let is_listed = owner.is_none_or(|owner| owner.exports.contains(&(share.span.start, *id)));
            let is_over = share.is_revoked && share.uses == 0 && share.attached.is_empty();
            let pins = owner.map_or(0, |owner| pins_within(owner, share.span));
            // Copies whose GPU was lost use it too, until whoever made them has heard of that.
            let least = uses.get(id).copied().unwrap_or(0);
            if is_over
                || !is_listed
                || (!share.is_revoked && !is_live)
                || share.uses < least
                || u64::from(share.uses) > pins
            {
                return Err(Violation::Share { share: *id });
            }
            attached = attached.wrapping_sub(share.attached.len());
        }
        match self.shares.keys().next() {
            Some(share) if attached != 0 => Err(Violation::Share { share: *share }),
            _ => Ok(()),
        }
    }
}

/// Checks an attachment, and counts how often the owner's regions are used through it.
fn verify_attachment(slice: &Slice, attachment: &Attachment, share: &Share) -> Result<u32, Violation> {
    let (mut showing, mut uses) = (0u32, 0u32);
    let mut states_fit = true;
    for index in attachment.regions() {
        let Some(region) = slice.band.region(index).filter(|region| region.state.is_shown()) else {
            continue;
        };
        showing = showing.saturating_add(1);
        uses = uses.saturating_add(region.pins);
        if let RegionState::Privatizing(_) = region.state {
            uses = uses.saturating_add(1);
        } else {
            states_fit &= region.state == attachment.shown_state();
        }
    }
    let is_known = share.attached.contains(&(slice.id, attachment.first));
    let agrees = attachment.is_revoked == share.is_revoked
        && attachment.owner == share.owner
        && attachment.owner_start == share.span.start
        && attachment.span.len_bytes() == share.span.len_bytes();
    if states_fit && is_known && agrees && showing > 0 && showing == attachment.showing {
        Ok(uses)
    } else {
        Err(Violation::Share { share: attachment.share })
    }
}

fn pins_within(slice: &Slice, span: Span) -> u64 {
    let pins = slice.band.touched(span).filter_map(|index| slice.band.region(index));
    pins.fold(0u64, |sum, region| sum.saturating_add(u64::from(region.pins)))
}
