//! The map of one guest's RAM.

use std::fs::File;
use std::sync::Arc;

use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionCollectionError, GuestRegionMmap,
};

use crate::file_kind::page_bytes;
use crate::sigbus::Watch;
use crate::span::{HostSpan, Mapping, SpanError};

/// Most regions one guest may have; the slot limit of vhost-user.
pub const MAX_REGIONS: usize = 509;

/// Most memory one guest may map here: far above any real guest, far below this process's address space, which all
/// guests share.
pub const MAX_GUEST_BYTES: u64 = 4 << 40;

/// Regions start at multiples of this, as the frontends' pages do.
const REGION_ALIGNMENT_BYTES: u64 = 4096;

/// One region as a frontend describes it.
#[derive(Debug)]
pub struct RegionSpec {
    /// Where the guest sees it.
    pub guest_start: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// Where the frontend sees it; ring addresses are given in this space.
    pub frontend_start: u64,
    /// The file behind it.
    pub file: File,
    /// Offset in the file.
    pub file_offset: u64,
}

/// Why a region cannot be added or found.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The region is empty, wraps around, or is not whole pages.
    #[error("Memory region {guest_start:#x}+{len_bytes:#x} is empty, wraps around or is not whole pages")]
    BadRegion {
        /// Where the guest sees it.
        guest_start: u64,
        /// Bytes.
        len_bytes: u64,
    },
    /// The file is smaller than the region.
    #[error(
        "Memory region at {guest_start:#x} needs {needed_bytes:#x} bytes of its file, which has {file_bytes:#x}"
    )]
    FileTooSmall {
        /// Where the guest sees it.
        guest_start: u64,
        /// Offset plus length.
        needed_bytes: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// The file is of a kind whose pages may never come.
    #[error(
        "The file behind the memory region at {guest_start:#x} is not memory: use memfd, shared memory, hugetlbfs or a \
         file on a local disk"
    )]
    NotMemory {
        /// Where the guest sees it.
        guest_start: u64,
    },
    /// The file cannot be inspected.
    #[error("The file behind the memory region at {guest_start:#x} cannot be inspected")]
    File {
        /// Where the guest sees it.
        guest_start: u64,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Mapping failed.
    #[error("The memory region at {guest_start:#x} cannot be mapped")]
    Mmap {
        /// Where the guest sees it.
        guest_start: u64,
        /// What vm-memory said.
        #[source]
        source: MmapRegionError,
    },
    /// The region overlaps another or the like.
    #[error("The memory region at {guest_start:#x} does not fit the map")]
    Collection {
        /// Where the guest sees it.
        guest_start: u64,
        /// What vm-memory said.
        #[source]
        source: GuestRegionCollectionError,
    },
    /// Too many regions.
    #[error("A guest may have {MAX_REGIONS} memory regions at most")]
    TooMany,
    /// The regions of all guests are too many to be watched.
    #[error("No more memory regions can be watched, all guests together")]
    TooManyWatched,
    /// Too much memory.
    #[error("A guest may have {MAX_GUEST_BYTES:#x} bytes of memory at most")]
    TooLarge,
    /// No such region.
    #[error("There is no memory region at {guest_start:#x} with {len_bytes:#x} bytes")]
    NoSuchRegion {
        /// Where the guest sees it.
        guest_start: u64,
        /// Bytes.
        len_bytes: u64,
    },
}

struct Region {
    mapped: Arc<GuestRegionMmap>,
    frontend_start: u64,
    watch: Watch,
}

// SAFETY: the region's mapping is made by vm-memory, lives as long as `mapped`, and neither moves nor shrinks.
unsafe impl Mapping for Region {
    fn start(&self) -> *mut u8 {
        self.mapped.as_ptr()
    }
    fn len(&self) -> usize {
        usize::try_from(self.mapped.len()).unwrap_or(0)
    }
    fn poisoned(&self) -> bool {
        self.watch.poisoned()
    }
}

/// An immutable map of a guest's RAM. Changing the memory makes a new map; whoever still holds the old one, or a span
/// of it, keeps its mappings alive.
#[derive(Clone, Default)]
pub struct GuestMap {
    memory: GuestMemoryMmap,
    regions: Vec<Arc<Region>>,
}

impl GuestMap {
    /// A guest without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// This map with one more region.
    pub fn with_region(&self, spec: RegionSpec) -> Result<Self, MapError> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        let RegionSpec { guest_start, len_bytes, frontend_start, file, file_offset } = spec;
        let bad = MapError::BadRegion { guest_start, len_bytes };
        let needed_bytes = match file_offset.checked_add(len_bytes) {
            Some(needed) if len_bytes > 0 => needed,
            _ => return Err(bad),
        };
        if guest_start.checked_add(len_bytes).is_none() || frontend_start.checked_add(len_bytes).is_none() {
            return Err(bad);
        }
        if self.len_bytes().saturating_add(len_bytes) > MAX_GUEST_BYTES {
            return Err(MapError::TooLarge);
        }
        let Ok(size) = usize::try_from(len_bytes) else { return Err(bad) };
        let unknown = |source| MapError::File { guest_start, source };
        let page_bytes = page_bytes(&file).map_err(unknown)?.ok_or(MapError::NotMemory { guest_start })?;
        // Whole pages, or the edge could be neither replaced nor unmapped; and no region is so small that a chain of
        // few bytes falls into very many spans.
        if (len_bytes | file_offset).checked_rem(page_bytes) != Some(0)
            || guest_start.checked_rem(REGION_ALIGNMENT_BYTES) != Some(0)
        {
            return Err(bad);
        }
        let file_bytes = file.metadata().map_err(unknown)?.len();
        if file_bytes < needed_bytes {
            return Err(MapError::FileTooSmall { guest_start, needed_bytes, file_bytes });
        }
        let mapped = MmapRegionBuilder::new(size)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .with_file_offset(FileOffset::new(file, file_offset))
            .build()
            .map_err(|source| MapError::Mmap { guest_start, source })?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(guest_start)).ok_or(bad)?;
        let mapped = Arc::new(mapped);
        let memory = self
            .memory
            .insert_region(Arc::clone(&mapped))
            .map_err(|source| MapError::Collection { guest_start, source })?;
        let page = usize::try_from(page_bytes).unwrap_or(size);
        let watch = Watch::new(mapped.as_ptr().expose_provenance(), size, page);
        let watch = watch.ok_or(MapError::TooManyWatched)?;
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region { mapped, frontend_start, watch }));
        regions.sort_by_key(|region| region.mapped.start_addr());
        Ok(Self { memory, regions })
    }

    /// This map without the region, and a handle that tells when the last user of its memory has let go.
    pub fn without_region(&self, guest_start: u64, len_bytes: u64) -> Result<(Self, Departed), MapError> {
        let missing = || MapError::NoSuchRegion { guest_start, len_bytes };
        let index = self
            .regions
            .iter()
            .position(|r| r.mapped.start_addr().0 == guest_start && r.mapped.len() == len_bytes)
            .ok_or_else(missing)?;
        let (memory, _) =
            self.memory.remove_region(GuestAddress(guest_start), len_bytes).map_err(|_| missing())?;
        let mut regions = self.regions.clone();
        let gone = regions.remove(index);
        Ok((Self { memory, regions }, Departed { regions: vec![Arc::downgrade(&gone)] }))
    }

    /// A handle that tells when the last user of all this map's regions has let go; drop the map itself first.
    pub fn departing(&self) -> Departed {
        Departed { regions: self.regions.iter().map(Arc::downgrade).collect() }
    }

    /// The view virtio-queue works on.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Regions.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of all regions.
    pub fn len_bytes(&self) -> u64 {
        self.regions.iter().fold(0, |sum, region| sum.saturating_add(region.mapped.len()))
    }

    /// Whether any region lost bytes because its file shrank.
    pub fn poisoned(&self) -> bool {
        self.regions.iter().any(|region| region.watch.poisoned())
    }

    /// The guest address of a frontend address, if `len_bytes` bytes from there lie in one region.
    pub fn from_frontend(&self, frontend_address: u64, len_bytes: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = frontend_address.checked_sub(region.frontend_start)?;
            let end = offset.checked_add(len_bytes)?;
            (end <= region.mapped.len())
                .then(|| region.mapped.start_addr().0.checked_add(offset))?
                .map(GuestAddress)
        })
    }

    /// Calls `each` with the spans that make up `len_bytes` bytes of guest RAM at `address`: one per region touched.
    /// Returns false, having called nothing, if any byte is not RAM.
    pub fn spans(&self, address: u64, len_bytes: u64, mut each: impl FnMut(HostSpan)) -> bool {
        let mut spans = [None, None];
        let mut more = Vec::new();
        let (mut at, mut left) = (address, len_bytes);
        let mut count = 0usize;
        while left > 0 {
            let Some(span) = self.first_span(at, left) else { return false };
            let taken = span.len_bytes() as u64;
            left = left.saturating_sub(taken);
            at = match at.checked_add(taken) {
                Some(next) => next,
                None if left == 0 => at,
                None => return false,
            };
            match spans.get_mut(count) {
                Some(place) => *place = Some(span),
                None => more.push(span),
            }
            count = count.saturating_add(1);
        }
        spans.into_iter().flatten().chain(more).for_each(&mut each);
        true
    }

    /// The longest span at `address`, `len_bytes` at most, within one region.
    fn first_span(&self, address: u64, len_bytes: u64) -> Option<HostSpan> {
        let after = self.regions.partition_point(|r| r.mapped.start_addr().0 <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let offset = address.checked_sub(region.mapped.start_addr().0)?;
        let room = region.mapped.len().checked_sub(offset).filter(|room| *room > 0)?;
        let len = usize::try_from(room.min(len_bytes)).ok()?;
        let mapping: Arc<dyn Mapping> = Arc::<Region>::clone(region);
        let span: Result<HostSpan, SpanError> = HostSpan::new(mapping, usize::try_from(offset).ok()?, len);
        span.ok()
    }
}

/// Regions taken out of a map, which live until their last user lets go.
pub struct Departed {
    regions: Vec<std::sync::Weak<Region>>,
}

impl Departed {
    /// Whether nobody uses the memory any more.
    pub fn gone(&self) -> bool {
        self.regions.iter().all(|region| region.strong_count() == 0)
    }

    /// Regions somebody still uses, and their bytes.
    pub fn left(&self) -> (usize, u64) {
        let left = self.regions.iter().filter_map(std::sync::Weak::upgrade);
        left.fold((0, 0), |(count, bytes), region| {
            (usize::saturating_add(count, 1), u64::saturating_add(bytes, region.mapped.len()))
        })
    }
}
