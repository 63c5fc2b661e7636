//! Images: bytes loaded once, by the operator, and shown to whoever attaches them.
//!
//! An image is a share of a slice without a guest, whose memory is nobody's guarantee: it lies on GPUs and in tiers as
//! that of any borrower, and is counted there, once, however many show it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, info};
use vram_gpu::{DeviceAddress, DeviceRange};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_pool::{
    AllocRequest, Audience, Placement, PoolError, Rights, ShareError, ShareId, SliceConfig, SliceId,
};
use vram_transfer::{Flow, TransferError};

use crate::{Access, AttachError, ImageError, MemoryLease, Residency};

/// Bytes that are read from a source and written at a time: no more than a region, so that one of zeros is left out.
const PIECE_BYTES: u64 = 2 << 20;
/// How long the memory of an image that is removed may take to come back.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// What an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfig {
    /// Its name: no other image has it.
    pub name: String,
    /// Bytes.
    pub length_bytes: u64,
    /// What those may do who attach it: not [`Rights::ReadWrite`].
    pub rights: Rights,
}

/// An image, for those who ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReport {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub stage: ImageStage,
    /// Bytes.
    pub length_bytes: u64,
    /// What those may do who attach it.
    pub rights: Rights,
    /// Allocations that show some of it.
    pub attached: usize,
    /// Bytes of GPU memory it takes.
    pub on_gpus_bytes: u64,
    /// Bytes of its regions that lie in tiers only; those that are zeros take nothing there.
    pub in_tiers_bytes: u64,
}

/// How far an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageStage {
    /// Its bytes are being loaded.
    Loading,
    /// It can be attached.
    Ready,
    /// It is being removed.
    Leaving,
}

/// An image in the table.
pub(crate) struct Image {
    length_bytes: u64,
    rights: Rights,
    /// None for one whose loading has just begun.
    slice: Option<SliceId>,
    stage: ImageStage,
    ready: Option<Ready>,
}

/// What there is of an image that can be attached.
struct Ready {
    share: ShareId,
    /// Keeps its memory.
    _lease: MemoryLease,
}

/// All images, by name.
pub(crate) type Images = BTreeMap<String, Image>;

impl Residency {
    /// Loads an image. The source is read to the image's length and no further; pieces of zeros take no room in tiers.
    /// Blocks until all is loaded; on an error nothing is left of it, unless the memory it had does not come back in time,
    /// and then the image stays to be removed.
    pub fn import_image(
        self: &Arc<Self>,
        config: &ImageConfig,
        source: &mut dyn io::Read,
    ) -> Result<(), ImageError> {
        let ImageConfig { name, length_bytes, rights } = config;
        if *rights == Rights::ReadWrite {
            return Err(ImageError::Writable { name: name.clone() });
        }
        let image = Image {
            length_bytes: *length_bytes,
            rights: *rights,
            slice: None,
            stage: ImageStage::Loading,
            ready: None,
        };
        {
            let mut images = self.images();
            if images.contains_key(name) {
                return Err(ImageError::NameTaken { name: name.clone() });
            }
            images.insert(name.clone(), image);
        }
        let loaded = self.add_image_slice(config).and_then(|slice| {
            self.change_image(name, |image| image.slice = Some(slice));
            self.load(slice, config, source)
        });
        match loaded {
            Ok(ready) => {
                self.change_image(name, |image| {
                    image.ready = Some(ready);
                    image.stage = ImageStage::Ready;
                });
                info!(image = name, bytes = length_bytes, "an image is loaded");
                Ok(())
            }
            Err(error) => {
                self.change_image(name, |image| image.stage = ImageStage::Leaving);
                if let Err(error) = self.finish_removal(name) {
                    error!(image = name, %error, "what was loaded of an image is not given back yet");
                }
                Err(error)
            }
        }
    }

    /// Gives a slice an allocation that shows an image; see [`Self::attach`].
    pub fn attach_image(self: &Arc<Self>, slice: SliceId, name: &str) -> Result<MemoryLease, ImageError> {
        let share = self.ready_share(name)?;
        self.attach(slice, share).map_err(|error| match error {
            // Removed in between.
            AttachError::Share(ShareError::NoSuchShare { .. }) => {
                ImageError::NoSuchImage { name: name.to_owned() }
            }
            error => error.into(),
        })
    }

    /// Removes an image nobody shows. Blocks until its memory is given back; if that takes too long it can be asked for
    /// again.
    pub fn remove_image(&self, name: &str) -> Result<(), ImageError> {
        let ready = {
            let mut images = self.images();
            let no_image = || ImageError::NoSuchImage { name: name.to_owned() };
            let image = images.get_mut(name).ok_or_else(no_image)?;
            if image.stage == ImageStage::Loading {
                return Err(ImageError::Loading { name: name.to_owned() });
            }
            if let Some(ready) = &image.ready {
                let mut pool = self.pool();
                let share = pool.share(ready.share);
                let attached = share.map_or(0, |share| share.attached);
                if attached > 0 || share.is_some_and(|share| share.in_use) {
                    return Err(ImageError::Attached { name: name.to_owned(), attached });
                }
                // Nobody attaches it from now on.
                let _ = pool.revoke(ready.share);
            }
            image.stage = ImageStage::Leaving;
            image.ready.take()
        };
        drop(ready);
        self.finish_removal(name)?;
        info!(image = name, "an image is removed");
        Ok(())
    }

    /// All images, by name.
    pub fn image_reports(&self) -> Vec<ImageReport> {
        let images = self.images();
        let pool = self.pool();
        let report = |(name, image): (&String, &Image)| {
            let usage = image.slice.and_then(|slice| pool.usage(slice));
            let share = image.ready.as_ref().and_then(|ready| pool.share(ready.share));
            ImageReport {
                name: name.clone(),
                stage: image.stage,
                length_bytes: image.length_bytes,
                rights: image.rights,
                attached: share.map_or(0, |share| share.attached),
                on_gpus_bytes: usage.as_ref().map_or(0, |usage| usage.backed_bytes),
                in_tiers_bytes: usage.as_ref().map_or(0, |usage| usage.stored_bytes),
            }
        };
        images.iter().map(report).collect()
    }

    fn ready_share(&self, name: &str) -> Result<ShareId, ImageError> {
        let images = self.images();
        let image = images.get(name).ok_or_else(|| ImageError::NoSuchImage { name: name.to_owned() })?;
        match &image.ready {
            Some(ready) => Ok(ready.share),
            None if image.stage == ImageStage::Loading => Err(ImageError::Loading { name: name.to_owned() }),
            None => Err(ImageError::NoSuchImage { name: name.to_owned() }),
        }
    }

    fn add_image_slice(self: &Arc<Self>, config: &ImageConfig) -> Result<SliceId, ImageError> {
        let slice = self.add_slice(SliceConfig {
            name: format!("image-{}", config.name),
            guarantee_bytes: 0,
            limit_bytes: config.length_bytes,
            placement: Placement::Spill,
            home: None,
        })?;
        Ok(slice)
    }

    /// Allocates an image's memory, fills it and exports it.
    fn load(
        self: &Arc<Self>,
        slice: SliceId,
        config: &ImageConfig,
        source: &mut dyn io::Read,
    ) -> Result<Ready, ImageError> {
        let &ImageConfig { length_bytes, rights, .. } = config;
        let lease = self.allocate(slice, AllocRequest { length_bytes, alignment_bytes: 0 })?;
        let mut piece = vec![0; usize::try_from(length_bytes.min(PIECE_BYTES)).unwrap_or(0)];
        let mut offset_bytes = 0;
        while let Some(left) = length_bytes.checked_sub(offset_bytes).filter(|left| *left > 0) {
            let len = usize::try_from(left.min(PIECE_BYTES)).unwrap_or(0);
            let bytes = piece.get_mut(..len).unwrap_or_default();
            source.read_exact(bytes).map_err(|source| ImageError::Source { offset_bytes, source })?;
            // The allocation is all zeros.
            if bytes.iter().any(|byte| *byte != 0) {
                let start = lease.range().start.0.saturating_add(offset_bytes);
                let to = DeviceRange { start: DeviceAddress(start), len_bytes: bytes.len() as u64 };
                self.write_image(slice, to, bytes)?;
            }
            offset_bytes = offset_bytes.saturating_add(bytes.len() as u64);
        }
        let share = self.export(slice, lease.range(), rights, Audience::All)?;
        Ok(Ready { share, _lease: lease })
    }

    fn write_image(
        self: &Arc<Self>,
        slice: SliceId,
        to: DeviceRange,
        bytes: &[u8],
    ) -> Result<(), ImageError> {
        let buffer = HostBuffer::new(bytes.len()).map_err(ImageError::Buffer)?;
        let span = buffer.span().part(0, bytes.len()).map_err(|_| TransferError::Mismatch)?;
        span.write_from(bytes);
        let mut from = SpanList::new();
        from.push(span);
        let work = self.access(slice, Access::Write { to, from });
        self.engine.run(Flow::Upkeep(slice.0), work, Vec::new()).inspect_err(|error| {
            self.note_failure(error);
        })?;
        Ok(())
    }

    /// Takes an image's slice away, whose memory is on its way back, and then its name.
    fn finish_removal(&self, name: &str) -> Result<(), ImageError> {
        let slice = self.images().get(name).and_then(|image| image.slice);
        if let Some(slice) = slice {
            let started = Instant::now();
            while let Err(error) = self.remove_slice(slice) {
                if matches!(error, PoolError::NoSuchSlice { .. }) {
                    break;
                }
                let left = RELEASE_WAIT.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Err(ImageError::InUse { name: name.to_owned(), source: error });
                }
                let pool = self.pool();
                let waited = self.released.wait_timeout(pool, left.min(Duration::from_millis(50)));
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
        let mut images = self.images();
        // Somebody else may have done it, and made another of that name.
        if images.get(name).is_some_and(|image| image.slice == slice && image.stage == ImageStage::Leaving) {
            images.remove(name);
        }
        Ok(())
    }

    fn change_image(&self, name: &str, change: impl FnOnce(&mut Image)) {
        if let Some(image) = self.images().get_mut(name) {
            change(image);
        }
    }

    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
