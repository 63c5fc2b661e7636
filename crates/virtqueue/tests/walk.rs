//! Rings and chains against a plain model: whatever table the guest writes, walking it gives what a simple reading of
//! the specification gives, and never more.

use std::sync::Arc;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};
use vram_guest_memory::{GuestMap, HostSpan, RegionSpec, SpanList};
use vram_virtqueue::{ChainFault, Finished, Post, Ring, RingAddresses, RingError, Token};

const SIZE: u16 = 8;
const MAX_DESCRIPTORS: u32 = 6;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const INDIRECT: u64 = 0x4000;
/// Memory is `0..MEMORY`; what lies behind is not memory.
const MEMORY: u64 = 0x10000;

fn map() -> GuestMap {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(MEMORY).unwrap();
    let spec = RegionSpec { guest_start: 0, len_bytes: MEMORY, frontend_start: 0, file, file_offset: 0 };
    GuestMap::new().with_region(spec).unwrap()
}

fn ring(map: &GuestMap) -> Ring {
    let addresses = RingAddresses {
        size: SIZE,
        descriptors: GuestAddress(TABLE),
        available: GuestAddress(AVAILABLE),
        used: GuestAddress(USED),
    };
    Ring::new(map, addresses, 0, false, MAX_DESCRIPTORS).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Desc {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn write_table(map: &GuestMap, at: u64, table: &[Desc]) {
    for (i, d) in table.iter().enumerate() {
        let at = at + i as u64 * 16;
        map.memory().write_obj(d.address.to_le(), GuestAddress(at)).unwrap();
        map.memory().write_obj(d.len.to_le(), GuestAddress(at + 8)).unwrap();
        map.memory().write_obj(d.flags.to_le(), GuestAddress(at + 12)).unwrap();
        map.memory().write_obj(d.next.to_le(), GuestAddress(at + 14)).unwrap();
    }
}

/// Buffers as (address, length).
type Buffers = Vec<(u64, u64)>;

/// What the specification says of a chain: readable and writable buffers, or none if malformed.
fn model(table: &[Desc], indirect: &[Desc], head: u16) -> Option<(Buffers, Buffers)> {
    let mut table = table;
    let mut d = *table.get(usize::from(head))?;
    if d.flags & 4 != 0 {
        let whole = d.len % 16 == 0 && d.len > 0 && d.flags & 1 == 0 && d.address == INDIRECT;
        if !whole || d.len as usize / 16 > indirect.len() {
            return None;
        }
        table = &indirect[..d.len as usize / 16];
        d = table[0];
    }
    let limit =
        MAX_DESCRIPTORS.min(if table.len() == usize::from(SIZE) { u32::from(SIZE) } else { u32::MAX });
    let (mut readable, mut writable) = (Vec::new(), Vec::new());
    for _ in 0..limit {
        let end = d.address.checked_add(u64::from(d.len))?;
        if d.flags & 4 != 0 || d.len == 0 || end > MEMORY {
            return None;
        }
        if d.flags & 2 != 0 {
            writable.push((d.address, u64::from(d.len)));
        } else if writable.is_empty() {
            readable.push((d.address, u64::from(d.len)));
        } else {
            return None;
        }
        if d.flags & 1 == 0 {
            return Some((readable, writable));
        }
        d = *table.get(usize::from(d.next))?;
    }
    None
}

fn desc(entries: u16) -> impl Strategy<Value = Desc> {
    let address = prop_oneof![8 => 0x5000u64..0xf000, 1 => Just(INDIRECT), 1 => any::<u64>(), 1 => MEMORY - 4..MEMORY + 4];
    let len =
        prop_oneof![8 => 1u32..64, 1 => Just(0), 1 => (1u32..5).prop_map(|n| n * 16), 1 => any::<u32>()];
    let flags =
        prop_oneof![4 => Just(1u16), 3 => Just(3), 2 => Just(2), 1 => Just(0), 1 => Just(4), 1 => 0u16..8];
    let next = prop_oneof![12 => 0..entries, 1 => any::<u16>()];
    (address, len, flags, next).prop_map(|(address, len, flags, next)| Desc { address, len, flags, next })
}

fn bytes_of(list: &[(u64, u64)]) -> u64 {
    list.iter().map(|(_, len)| len).sum()
}

/// The addresses a list names, found by writing a mark through it.
fn same_bytes(map: &GuestMap, list: &SpanList, expected: &[(u64, u64)]) -> bool {
    if list.len_bytes() != bytes_of(expected) {
        return false;
    }
    let base = {
        let mut start = None;
        map.spans(0, 1, |span| start = Some(span.as_ptr() as u64));
        start.unwrap()
    };
    let got: Vec<u64> = list
        .spans()
        .iter()
        .flat_map(|span: &HostSpan| {
            (0..span.len_bytes() as u64).map(move |i| span.as_ptr() as u64 - base + i)
        })
        .collect();
    let want: Vec<u64> =
        expected.iter().flat_map(|(address, len)| (0..*len).map(move |i| address + i)).collect();
    got == want
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]
    #[test]
    fn pop_any_table_gives_what_the_specification_gives(
        table in prop::collection::vec(desc(SIZE), usize::from(SIZE)),
        indirect in prop::collection::vec(desc(4), 4),
        head in 0..SIZE,
    ) {
        let map = map();
        write_table(&map, TABLE, &table);
        write_table(&map, INDIRECT, &indirect);
        map.memory().write_obj(head.to_le(), GuestAddress(AVAILABLE + 4)).unwrap();
        map.memory().write_obj(1u16.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
        let mut ring = ring(&map);
        let chain = ring.pop(&map).unwrap().unwrap();
        prop_assert_eq!(chain.head, head);
        match model(&table, &indirect, head) {
            Some((readable, writable)) => {
                prop_assert_eq!(chain.fault, None);
                prop_assert!(same_bytes(&map, &chain.readable, &readable));
                prop_assert!(same_bytes(&map, &chain.writable, &writable));
            }
            // An indirect table elsewhere than where the model looks may happen to be well-formed.
            None if table[usize::from(head)].flags & 4 != 0
                && table[usize::from(head)].address != INDIRECT => {}
            None if table[usize::from(head)].flags & 4 != 0
                && table[usize::from(head)].len > 64 => {}
            None => prop_assert!(chain.fault.is_some(), "{:?}", chain),
        }
        prop_assert!(ring.pop(&map).unwrap().is_none());
        ring.complete(&map, head, 7).unwrap();
        let used: u16 = map.memory().read_obj(GuestAddress(USED + 2)).unwrap();
        let id: u32 = map.memory().read_obj(GuestAddress(USED + 4)).unwrap();
        let len: u32 = map.memory().read_obj(GuestAddress(USED + 8)).unwrap();
        prop_assert_eq!((u16::from_le(used), u32::from_le(id), u32::from_le(len)), (1, u32::from(head), 7));
        prop_assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn pop_any_index_is_a_chain_nothing_or_a_broken_ring(index in any::<u16>(), heads in prop::collection::vec(any::<u16>(), 8)) {
        let map = map();
        write_table(&map, TABLE, &[Desc { address: 0x5000, len: 4, flags: 0, next: 0 }; 8]);
        for (i, head) in heads.iter().enumerate() {
            map.memory().write_obj(head.to_le(), GuestAddress(AVAILABLE + 4 + i as u64 * 2)).unwrap();
        }
        map.memory().write_obj(index.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
        let mut ring = ring(&map);
        let mut taken = Vec::new();
        let result = loop {
            match ring.pop(&map) {
                Ok(Some(chain)) => taken.push(chain.head),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        prop_assert!(taken.len() <= usize::from(SIZE));
        match result {
            Ok(()) => prop_assert_eq!(taken.len(), usize::from(index)),
            Err(RingError::AvailAhead { .. }) => prop_assert!(index > SIZE),
            Err(RingError::HeadOutOfRange { head, .. }) => prop_assert!(head >= SIZE),
            Err(RingError::HeadInFlight { head }) => prop_assert!(taken.contains(&head)),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn ring_with_impossible_layout_is_refused() {
    let map = map();
    let good = RingAddresses {
        size: SIZE,
        descriptors: GuestAddress(TABLE),
        available: GuestAddress(AVAILABLE),
        used: GuestAddress(USED),
    };
    let wrong = [
        RingAddresses { size: 0, ..good },
        RingAddresses { size: 3, ..good },
        RingAddresses { size: 2048, ..good },
        RingAddresses { descriptors: GuestAddress(TABLE + 1), ..good },
        RingAddresses { available: GuestAddress(AVAILABLE + 1), ..good },
        RingAddresses { used: GuestAddress(USED + 2), ..good },
        RingAddresses { descriptors: GuestAddress(MEMORY - 16), ..good },
        RingAddresses { used: GuestAddress(MEMORY), ..good },
        RingAddresses { available: GuestAddress(u64::MAX - 1), ..good },
    ];
    for addresses in wrong {
        assert!(Ring::new(&map, addresses, 0, true, 16).is_err(), "{addresses:?}");
    }
}

#[test]
fn chain_fault_names_what_is_wrong() {
    let map = map();
    write_table(&map, TABLE, &[Desc { address: 0x5000, len: 4, flags: 1, next: 0 }; 8]);
    map.memory().write_obj(1u16.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
    let chain = ring(&map).pop(&map).unwrap().unwrap();
    assert_eq!(chain.fault, Some(ChainFault::TooLong { max_descriptors: MAX_DESCRIPTORS }));
}

#[test]
fn token_posts_once_whether_finished_or_dropped() {
    struct Box(std::sync::Mutex<Vec<(u16, Option<u32>)>>);
    impl Post<u32> for Box {
        fn post(&self, finished: Finished<u32>) {
            self.0.lock().unwrap().push((finished.head, finished.result));
        }
    }
    let mailbox = Arc::new(Box(std::sync::Mutex::default()));
    let post: Arc<dyn Post<u32>> = Arc::<Box>::clone(&mailbox);
    Token::new(1, Arc::clone(&post)).finish(5);
    drop(Token::new(2, post));
    assert_eq!(*mailbox.0.lock().unwrap(), [(1, Some(5)), (2, None)]);
}
