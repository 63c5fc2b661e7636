//! A pool over simulated GPUs with all tiers below it.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};

use vram_gpu::{Backend, DeviceRange, Pattern};
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_guest_memory::{HostBuffer, SpanList};
use vram_pool::{AllocRequest, Placement, SliceConfig, SliceId};
use vram_residency::{
    Access, AllocateError, MemoryConfig, MemoryEvent, MemoryLease, MemoryWatch, Residency, Tier,
};
use vram_tier::testing::Faults;
use vram_tier::{
    ChunkedStore, CompressedConfig, DiskConfig, HostConfig, HostStore, RemoteConfig, Store, TierConfig,
};
use vram_transfer::{Flow, Job, Outcome};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SHARD: u64 = 2 * MIB;

/// What tiers there are: shards of the host tier, of the compressed one, of the disk, and whether there is a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tiers {
    pub(crate) host: u64,
    pub(crate) compressed: u64,
    pub(crate) disk: u64,
    pub(crate) remote: u64,
}

pub(crate) struct Rig {
    pub(crate) sim: Arc<SimBackend>,
    pub(crate) residency: Arc<Residency>,
    pub(crate) faults: Vec<Faults>,
    pub(crate) stores: Vec<Arc<dyn Store>>,
    _dir: tempfile::TempDir,
}

/// What somebody was told.
#[derive(Default)]
pub(crate) struct Watch(Mutex<Vec<MemoryEvent>>);

impl Watch {
    pub(crate) fn events(&self) -> Vec<MemoryEvent> {
        self.0.lock().unwrap().clone()
    }
}

impl MemoryWatch for Watch {
    fn happened(&self, event: MemoryEvent) {
        self.0.lock().unwrap().push(event);
    }
}

impl Rig {
    pub(crate) fn new(gpus: &str, tiers: Tiers) -> Self {
        // Shown if the test fails.
        let _ = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_test_writer()
            .try_init();
        let sim = Arc::new(SimBackend::new(SimConfig::parse(gpus).unwrap()).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let (mut faults, mut stores, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        let mut fault = || {
            faults.push(Faults::new());
            faults.last().unwrap().clone()
        };
        if tiers.host > 0 {
            let config = HostConfig {
                bytes: tiers.host * SHARD,
                slot_bytes: SHARD,
                preallocate: false,
                huge_pages: false,
            };
            let store = Arc::new(HostStore::open_with_faults(&config, fault()).unwrap());
            stores.push(Arc::clone(&store) as Arc<dyn Store>);
            opened.push(Tier::Host(store));
        }
        let mut open = |config: TierConfig, fault: Faults| {
            let store: Arc<dyn Store> = Arc::new(ChunkedStore::open_with_faults(&config, fault).unwrap());
            stores.push(Arc::clone(&store));
            opened.push(Tier::Chunked(store));
        };
        let chunk_bytes = 256 << 10;
        if tiers.compressed > 0 {
            let config =
                CompressedConfig { chunk_bytes, ..CompressedConfig::new(Some(tiers.compressed * SHARD)) };
            open(TierConfig::Compressed(config), fault());
        }
        if tiers.disk > 0 {
            let config = DiskConfig { chunk_bytes, ..DiskConfig::new(dir.path(), tiers.disk * SHARD) };
            open(TierConfig::Disk(config), fault());
        }
        if tiers.remote > 0 {
            let url = format!("file://{}", dir.path().display());
            let config =
                RemoteConfig { chunk_bytes, bytes: Some(tiers.remote * SHARD), ..RemoteConfig::new(url) };
            open(TierConfig::Remote(config), fault());
        }
        let backend: Arc<dyn Backend> = Arc::<SimBackend>::clone(&sim);
        let memory = MemoryConfig { shard_bytes: SHARD, reserve_bytes: 0 };
        let residency = Residency::with_tiers(backend, memory, opened).unwrap();
        Self { sim, residency, faults, stores, _dir: dir }
    }

    /// Somebody who is told what happens to the memory of a slice.
    pub(crate) fn watch(&self, slice: SliceId) -> Arc<Watch> {
        let watch = Arc::<Watch>::default();
        let weak: Weak<Watch> = Arc::downgrade(&watch);
        self.residency.subscribe(slice, weak);
        watch
    }

    pub(crate) fn slice(&self, name: &str, limit: u64, guarantee: u64) -> SliceId {
        self.residency
            .add_slice(SliceConfig {
                name: name.to_owned(),
                guarantee_bytes: guarantee,
                limit_bytes: limit,
                placement: Placement::Spill,
                home: None,
            })
            .unwrap()
    }

    pub(crate) fn alloc(&self, slice: SliceId, length_bytes: u64) -> Result<MemoryLease, AllocateError> {
        self.residency.allocate(slice, AllocRequest { length_bytes, alignment_bytes: 256 })
    }

    /// Begins an access; how it ended will be told.
    pub(crate) fn begin(&self, slice: SliceId, access: Access) -> Receiver<Outcome> {
        let (sender, receiver) = channel();
        let done = Box::new(move |outcome: Outcome| sender.send(outcome).unwrap());
        let work = self.residency.access(slice, access);
        self.residency.engine().stream(Flow::Requests(slice.0)).submit(Job {
            work,
            leases: Vec::new(),
            done,
        });
        receiver
    }

    pub(crate) fn run(&self, slice: SliceId, access: Access) -> Outcome {
        end_of(&self.begin(slice, access))
    }

    pub(crate) fn write(&self, slice: SliceId, to: DeviceRange, bytes: &[u8]) -> Outcome {
        let from = spans(bytes.len());
        from.write_from(bytes);
        self.run(slice, Access::Write { to, from })
    }

    pub(crate) fn read(&self, slice: SliceId, from: DeviceRange) -> (Outcome, Vec<u8>) {
        let to = spans(from.len_bytes as usize);
        let outcome = self.run(slice, Access::Read { from, to: to.clone() });
        let mut bytes = vec![0x5a; from.len_bytes as usize];
        to.read_into(&mut bytes);
        (outcome, bytes)
    }

    pub(crate) fn copy(&self, slice: SliceId, to: DeviceRange, from: DeviceRange) -> Outcome {
        self.run(slice, Access::Copy { to, from })
    }

    pub(crate) fn fill(&self, slice: SliceId, to: DeviceRange, byte: u8) -> Outcome {
        self.run(slice, Access::Fill { to, pattern: Pattern::U8(byte) })
    }
}

/// How an access ends.
pub(crate) fn end_of(access: &Receiver<Outcome>) -> Outcome {
    access.recv_timeout(std::time::Duration::from_secs(60)).expect("an access that never ends")
}

pub(crate) fn spans(len: usize) -> SpanList {
    let mut list = SpanList::new();
    list.push(HostBuffer::new(len).unwrap().span().part(0, len).unwrap());
    list
}
