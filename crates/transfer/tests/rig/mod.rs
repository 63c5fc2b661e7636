//! What the tests of the engine share: two simulated GPUs, host memory, stores.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "no test uses everything")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use vram_gpu::{Backend, DeviceAddress, DeviceRange, GpuId, ShardHandle};
use vram_gpu_sim::{SimBackend, SimConfig};
use vram_guest_memory::{HostBuffer, HostSpan, SpanList};
use vram_transfer::{ColdSource, Engine, Job, Outcome, Part, TransferError, Work};

pub const MIB: u64 = 1 << 20;
pub const WAIT: Duration = Duration::from_secs(10);

pub struct Rig {
    pub sim: Arc<SimBackend>,
    pub engine: Arc<Engine>,
    pub band: DeviceRange,
    shard_bytes: u64,
    _shards: Vec<ShardHandle>,
}

/// Two GPUs, 2 MiB of each mapped side by side.
pub fn rig() -> Rig {
    rig_of(2 * MIB)
}

/// Two GPUs, so much of each mapped side by side.
pub fn rig_of(shard_bytes: u64) -> Rig {
    let sim = Arc::new(SimBackend::new(SimConfig::uniform(2, 4 * shard_bytes)).unwrap());
    let backend: Arc<dyn Backend> = Arc::<SimBackend>::clone(&sim);
    let band = sim.reserve_band(2 * shard_bytes, 2 * MIB).unwrap();
    let mut shards = Vec::new();
    for gpu in [0, 1] {
        let at = DeviceAddress(band.start.0 + u64::from(gpu) * shard_bytes);
        let shard = sim.create_shard(GpuId(gpu), shard_bytes).unwrap();
        sim.map(at, &shard).unwrap();
        sim.set_access(DeviceRange { start: at, len_bytes: shard_bytes }, &[GpuId(0), GpuId(1)]).unwrap();
        shards.push(shard);
    }
    let engine = Engine::new(&backend).unwrap();
    Rig { sim, engine, band, shard_bytes, _shards: shards }
}

impl Rig {
    /// The parts of a range of the band.
    pub fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let gpu = at / self.shard_bytes;
            let to = end.min((gpu + 1) * self.shard_bytes);
            let range = DeviceRange { start: DeviceAddress(self.band.start.0 + at), len_bytes: to - at };
            parts.push(Part::gpu(range, GpuId(gpu as u16)));
            at = to;
        }
        parts
    }
}

pub fn host(bytes: &[u8]) -> SpanList {
    let buffer = HostBuffer::new(bytes.len()).unwrap();
    let span = buffer.span().part(0, bytes.len()).unwrap();
    span.write_from(bytes);
    let mut list = SpanList::new();
    list.push(span);
    list
}

pub fn job(work: Work) -> (Job, Receiver<Outcome>) {
    let (sender, receiver) = channel();
    let done = Box::new(move |outcome| sender.send(outcome).unwrap());
    (Job { work, leases: Vec::new(), done }, receiver)
}

pub fn outcome(receiver: &Receiver<Outcome>) -> Outcome {
    receiver.recv_timeout(WAIT).expect("the job never ended")
}

/// The bytes of spans.
pub fn bytes_in(spans: &SpanList) -> Vec<u8> {
    let mut bytes = vec![0; spans.len_bytes() as usize];
    spans.read_into(&mut bytes);
    bytes
}

/// Bytes no two pieces of which are alike.
pub fn noise(len: u64) -> Vec<u8> {
    (0..len).map(|i| ((i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 56) as u8).collect()
}

/// A store that has all its bytes at hand.
pub struct Store(pub Vec<u8>);

impl ColdSource for Store {
    fn read(&self, offset_bytes: u64, to: &HostSpan) -> Result<(), TransferError> {
        let from = offset_bytes as usize;
        to.write_from(&self.0[from..from + to.len_bytes()]);
        Ok(())
    }
}

impl Store {
    pub fn part(self, offset_bytes: u64, len_bytes: u64) -> Part {
        Part::cold(Arc::new(self), offset_bytes, len_bytes)
    }
}

/// A store that answers nobody until it is opened, and then with ones; counts who asks.
#[derive(Default)]
pub struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    pub fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    /// How many reads have begun.
    pub fn asked(&self) -> usize {
        self.state.lock().unwrap().0
    }

    pub fn wait_asked(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, WAIT, |state| state.0 < count).unwrap();
        assert!(!waited.1.timed_out(), "nobody asked");
    }

    pub fn part(self: &Arc<Self>, len_bytes: u64) -> Part {
        Part::cold(Arc::<Self>::clone(self), 0, len_bytes)
    }
}

impl ColdSource for Gate {
    fn read(&self, _: u64, to: &HostSpan) -> Result<(), TransferError> {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
        to.write_from(&vec![1; to.len_bytes()]);
        Ok(())
    }
}
