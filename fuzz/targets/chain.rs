//! A ring and its chains in guest memory that holds anything.
//!
//! The first 8 bytes choose the ring, the rest is guest memory from address 0 on:
//!
//! | byte | what |
//! |---|---|
//! | 0 | bit 0: event index; bit 1: the ring lies at three addresses of 8 bytes that follow the head |
//! | 1 | the size is 2 to the power of this, modulo 12 |
//! | 2–3 | index of the first chain |
//! | 4 | most descriptors of a chain |
//! | 5–7 | what is done: two bits a step, over and over |
//!
//! Memory is two regions side by side, then a hole, then a third. Without bit 1 the descriptor table lies at 0, the
//! available ring behind it, and the used ring behind that.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, GuestAddress};
use vram_guest_memory::{GuestMap, RegionSpec, SpanList};
use vram_protocol::{QueueKind, REQUEST_BYTES, Request};
use vram_virtqueue::{Chain, Ring, RingAddresses};

const REGIONS: [(u64, u64); 3] = [(0, 0x3000), (0x3000, 0x1000), (0x8000, 0x1000)];
const STEPS: u32 = 96;

thread_local! {
    static MAP: GuestMap = map();
}

fn map() -> GuestMap {
    REGIONS.iter().fold(GuestMap::new(), |map, (guest_start, len_bytes)| {
        let file = tempfile::tempfile_in("/dev/shm").expect("a temporary file");
        file.set_len(*len_bytes).expect("room for it");
        let (guest_start, len_bytes) = (*guest_start, *len_bytes);
        map.with_region(RegionSpec {
            guest_start,
            len_bytes,
            frontend_start: guest_start,
            file,
            file_offset: 0,
        })
        .expect("regions that do not overlap")
    })
}

fuzz_target!(|data: &[u8]| MAP.with(|map| one(map, data)));

fn one(map: &GuestMap, data: &[u8]) {
    let Some((head, mut rest)) = data.split_first_chunk::<8>() else { return };
    let size = 1u16 << (head[1] % 12);
    let used = (u64::from(size) * 18 + 6).next_multiple_of(4);
    let mut addresses = RingAddresses {
        size,
        descriptors: GuestAddress(0),
        available: GuestAddress(u64::from(size) * 16),
        used: GuestAddress(used),
    };
    if head[0] & 2 != 0 {
        for address in [&mut addresses.descriptors, &mut addresses.available, &mut addresses.used] {
            let Some((chosen, behind)) = rest.split_first_chunk::<8>() else { return };
            *address = GuestAddress(u64::from_le_bytes(*chosen));
            rest = behind;
        }
    }
    fill(map, rest);

    let next_avail = u16::from_le_bytes([head[2], head[3]]);
    let max_descriptors = u32::from(head[4]);
    let Ok(mut ring) = Ring::new(map, addresses, next_avail, head[0] & 1 != 0, max_descriptors) else {
        return;
    };
    let steps = u32::from_le_bytes([head[5], head[6], head[7], head[5]]);
    let mut taken: Vec<Chain> = Vec::new();
    for step in 0..STEPS {
        assert_eq!(ring.in_flight(), taken.len());
        let outcome = match (steps.rotate_right(step * 2)) & 3 {
            0 | 1 => match ring.pop(map) {
                Ok(Some(chain)) => {
                    check(&chain, size, max_descriptors);
                    use_like_a_device(&chain);
                    taken.push(chain);
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
            2 => match taken.pop() {
                Some(chain) => ring.complete(map, chain.head, step),
                None => ring.enable_kicks(map).map(drop),
            },
            _ => ring.needs_notification(map).and_then(|_| ring.disable_kicks(map)),
        };
        // A broken ring ends the session.
        if outcome.is_err() {
            return;
        }
    }
}

/// Guest memory holds these bytes, and zeros behind them.
fn fill(map: &GuestMap, bytes: &[u8]) {
    let mut rest = bytes;
    for (start, len_bytes) in REGIONS {
        let mut page = vec![0; len_bytes as usize];
        let (now, later) = rest.split_at(rest.len().min(page.len()));
        page[..now.len()].copy_from_slice(now);
        rest = later;
        map.memory().write_slice(&page, GuestAddress(start)).expect("guest memory");
    }
}

/// What holds for every chain, whatever the guest wrote.
fn check(chain: &Chain, size: u16, max_descriptors: u32) {
    assert!(chain.head < size);
    let most = (max_descriptors as usize) * REGIONS.len();
    assert!(chain.readable.spans().len() + chain.writable.spans().len() <= most);
    for list in [&chain.readable, &chain.writable] {
        let sum: u64 = list.spans().iter().map(|span| span.len_bytes() as u64).sum();
        assert_eq!(list.len_bytes(), sum);
        assert!(list.spans().iter().all(|span| !span.is_empty()));
    }
    if chain.fault.is_none() {
        assert!(!chain.readable.is_empty() || !chain.writable.is_empty());
    }
}

/// Reads and writes every byte of the chain: it is guest memory, or this program ends here.
fn use_like_a_device(chain: &Chain) {
    let mut bytes = vec![0; usize::try_from(chain.readable.len_bytes()).expect("a usize").min(1 << 20)];
    assert_eq!(chain.readable.read_into(&mut bytes), bytes.len());
    if let Some(request) = bytes.first_chunk::<REQUEST_BYTES>() {
        let _ = Request::decode(request, QueueKind::Request);
    }
    let len_bytes = chain.writable.len_bytes();
    let answer = vec![0xa5; usize::try_from(len_bytes).expect("a usize").min(1 << 20)];
    assert_eq!(chain.writable.write_from(&answer), answer.len());
    split(chain.readable.clone(), len_bytes % 71);
    split(chain.writable.clone(), 40);
}

fn split(list: SpanList, at: u64) {
    let whole = list.len_bytes();
    match list.split_at(at) {
        Some((first, second)) => assert_eq!((first.len_bytes(), second.len_bytes()), (at, whole - at)),
        None => assert!(at > whole),
    }
}
