//! Numbers both sides must agree on.

/// First word of the configuration space: the bytes `VRAM`.
pub const CONFIG_MAGIC: u32 = 0x4d41_5256;
/// Major ABI version; a different one is a different device.
pub const ABI_MAJOR: u16 = 1;
/// Minor ABI version; a higher one only adds.
pub const ABI_MINOR: u16 = 1;
/// The virtio device id a device uses unless configured otherwise.
pub const VIRTIO_ID_DEFAULT: u32 = 37;
/// The other virtio device id drivers bind.
pub const VIRTIO_ID_ALTERNATE: u32 = 63;

/// Index of the control queue.
pub const QUEUE_CONTROL: u16 = 0;
/// Index of the event queue.
pub const QUEUE_EVENT: u16 = 1;
/// Index of the first request queue.
pub const QUEUE_FIRST_REQUEST: u16 = 2;
/// Fewest queues a working device has: control, events, one request queue.
pub const QUEUES_MIN: u16 = 3;

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 64;
/// Bytes of every request, whatever its opcode.
pub const REQUEST_BYTES: usize = 64;
/// Bytes of every response, whatever its opcode.
pub const RESPONSE_BYTES: usize = 40;
/// Bytes of every event, whatever its kind.
pub const EVENT_BYTES: usize = 32;

/// Most data descriptors (beyond request and response) in one chain.
pub const MAX_SEGMENTS: u32 = 1024;
/// Most bytes one WRITE or READ may move.
pub const MAX_TRANSFER_BYTES: u64 = 4 << 20;
/// Every address an ALLOC returns is a multiple of this.
pub const MIN_ALIGNMENT: u32 = 256;
/// Largest alignment an ALLOC may ask for.
pub const MAX_ALIGNMENT: u64 = 1 << 30;
/// Most contexts open at once in one session.
pub const MAX_CONTEXTS: u32 = 1024;
/// Most live allocations in one session.
pub const MAX_ALLOCATIONS: u32 = 1 << 20;
/// Stream numbers are below this.
pub const MAX_STREAMS: u32 = 1024;

/// FENCE flag: wait for every stream of the context, not only the named one.
pub const FENCE_ALL_STREAMS: u16 = 1 << 0;

/// HELLO and INFO flag: no GPU is behind this device; memory and copies are simulated.
pub const DEVICE_SIMULATED: u32 = 1 << 0;
/// HELLO flag: the session this driver opened before goes on, with its contexts and memory.
pub const DEVICE_RESUMED: u32 = 1 << 1;
/// INFO GPU entry flag: the slice's home GPU.
pub const GPU_HOME: u32 = 1 << 0;

/// GPU of an extent that is on none.
pub const GPU_NONE: u32 = 0xffff_ffff;
/// Tier of an extent: on a GPU.
pub const TIER_GPU: u32 = 0;
/// Tier of an extent: in host memory.
pub const TIER_HOST: u32 = 1;
/// Tier of an extent: in host memory, compressed.
pub const TIER_COMPRESSED: u32 = 2;
/// Tier of an extent: on a disk of the host.
pub const TIER_DISK: u32 = 3;
/// Tier of an extent: on another machine.
pub const TIER_REMOTE: u32 = 4;
/// Tier of an extent whose bytes were in one of the tiers and are damaged, and so lost.
pub const TIER_DAMAGED: u32 = 0xffff_fffe;
/// Tier of an extent whose bytes are lost with their GPU.
pub const TIER_LOST: u32 = 0xffff_ffff;

/// Event: a GPU is lost; `value` is its number.
pub const EVENT_GPU_LOST: u32 = 1;
/// Event: stored bytes are damaged; `value` is the first address, `extra` how many bytes.
pub const EVENT_DATA_LOST: u32 = 2;
/// Event: the slice was resized; `value` is its limit, `extra` its guarantee.
pub const EVENT_LIMIT_CHANGED: u32 = 3;
/// Event: there was no room for others; `value` is how many.
pub const EVENT_MISSED: u32 = 4;

/// Advice: the range is needed soon.
pub const ADVICE_PREFETCH: u32 = 1;
/// Advice: the range is not needed soon.
pub const ADVICE_COLD: u32 = 2;
/// Advice: the range is to stay on GPUs.
pub const ADVICE_PIN: u32 = 3;
/// Advice: the range may leave the GPUs again.
pub const ADVICE_UNPIN: u32 = 4;
/// Advice: the range is best on the GPU that the argument names.
pub const ADVICE_PREFER_GPU: u32 = 5;
