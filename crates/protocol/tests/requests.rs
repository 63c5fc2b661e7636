//! What each request may and may not say, as far as its 64 bytes tell: `docs/protocol.md` sections 2.3 and 3.

use vram_protocol::{
    Advice, Advise, Alloc, ContextOpen, Copy, Fill, Header, Hello, Layout, MAX_ALIGNMENT, MAX_STREAMS,
    MAX_TRANSFER_BYTES, Opcode, Query, QueueKind, REQUEST_BYTES, Range, Request, Status, layouts,
};

const TAG: u64 = 0xfeed_face_cafe_beef;
const ADDRESS: u64 = 0x10_0000;
const BODY: usize = 24;

/// A valid request of every opcode.
fn valid() -> Vec<Request> {
    let range = Range { address: ADDRESS, length: 4096 };
    vec![
        Request::Hello(Hello { abi_major: 1, abi_minor: 0, driver_epoch: 1 }),
        Request::Info,
        Request::ContextOpen(ContextOpen { label: [b'x'; 32] }),
        Request::ContextClose,
        Request::Alloc(Alloc { length: 1, alignment: 0 }),
        Request::Free(ADDRESS),
        Request::Query(Query { address: ADDRESS, first_extent: u32::MAX }),
        Request::Advise(Advise { range, advice: Advice::PreferGpu { gpu: u32::MAX } }),
        Request::Write(range),
        Request::Read(range),
        Request::Copy(Copy { destination: ADDRESS, source: 2 * ADDRESS, length: 4096 }),
        Request::Fill(Fill { range, pattern: u32::MAX, width: 1 }),
        Request::Fence { all_streams: false },
    ]
}

fn bytes(request: &Request) -> [u8; REQUEST_BYTES] {
    request.encode(Header { tag: TAG, context: 1, stream: 0 })
}

/// Decodes on the right queue; the status that a guest would see, OK if it decodes. The tag is always echoed.
fn outcome(bytes: &[u8; REQUEST_BYTES], queue: QueueKind) -> Status {
    match Request::decode(bytes, queue) {
        Ok((header, _)) => {
            assert_eq!(header.tag, TAG);
            Status::Ok
        }
        Err(error) => {
            assert_eq!(error.tag, TAG, "the tag is echoed with {}", error.status);
            error.status
        }
    }
}

fn status(request: Request) -> Status {
    outcome(&bytes(&request), request.opcode().queue())
}

/// The structure of an opcode's body; `None` where the body is zero.
fn body_layout(opcode: Opcode) -> Option<&'static Layout> {
    let name = match opcode {
        Opcode::Info | Opcode::ContextClose | Opcode::Fence => return None,
        Opcode::Hello => "virtio_vram_hello",
        Opcode::ContextOpen => "virtio_vram_context_open",
        Opcode::Alloc => "virtio_vram_alloc",
        Opcode::Free => "virtio_vram_free",
        Opcode::Query => "virtio_vram_query",
        Opcode::Advise => "virtio_vram_advise",
        Opcode::Write | Opcode::Read => "virtio_vram_range",
        Opcode::Copy => "virtio_vram_copy",
        Opcode::Fill => "virtio_vram_fill",
    };
    Some(layouts().iter().find(|layout| layout.name == name).unwrap())
}

/// The bytes of a request that must be zero.
fn reserved_bytes(opcode: Opcode) -> Vec<usize> {
    let body = match body_layout(opcode) {
        None => (BODY..REQUEST_BYTES).collect::<Vec<_>>(),
        Some(layout) => {
            let reserved = layout.fields.iter().filter(|field| field.name.starts_with("reserved"));
            reserved.flat_map(|field| BODY + field.offset..BODY + field.offset + field.size).collect()
        }
    };
    [20, 21, 22, 23].into_iter().chain(body).collect()
}

#[test]
fn valid_requests_cover_every_opcode() {
    let all: Vec<_> = Opcode::ALL.iter().map(|(opcode, _)| *opcode).collect();
    assert_eq!(valid().iter().map(Request::opcode).collect::<Vec<_>>(), all);
    for request in valid() {
        assert_eq!(status(request), Status::Ok, "{request:?}");
    }
}

#[test]
fn any_reserved_bit_set_is_bad_request() {
    for request in valid() {
        let reserved = reserved_bytes(request.opcode());
        assert!(reserved.len() >= 4 + 8, "{request:?} has reserved bytes in header and body");
        for at in reserved {
            for bit in 0..8 {
                let mut bytes = bytes(&request);
                bytes[at] ^= 1 << bit;
                let got = outcome(&bytes, request.opcode().queue());
                assert_eq!(got, Status::BadRequest, "{request:?}, byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn unknown_flags_are_bad_request() {
    for request in valid() {
        for bit in 0..16u16 {
            let mut bytes = bytes(&request);
            bytes[2..4].copy_from_slice(&(1u16 << bit).to_le_bytes());
            let known = request.opcode() == Opcode::Fence && bit == 0;
            let expect = if known { Status::Ok } else { Status::BadRequest };
            assert_eq!(outcome(&bytes, request.opcode().queue()), expect, "{request:?}, flag {bit}");
        }
    }
}

#[test]
fn every_opcode_on_another_queue_is_wrong_queue() {
    for request in valid() {
        for queue in [QueueKind::Control, QueueKind::Event, QueueKind::Request] {
            if queue != request.opcode().queue() {
                assert_eq!(outcome(&bytes(&request), queue), Status::WrongQueue, "{request:?} on {queue:?}");
            }
        }
    }
}

#[test]
fn every_unknown_opcode_is_unsupported() {
    for code in 0..=u16::MAX {
        if Opcode::from_code(code).is_some() {
            continue;
        }
        let mut bytes = bytes(&Request::Info);
        bytes[0..2].copy_from_slice(&code.to_le_bytes());
        for queue in [QueueKind::Control, QueueKind::Event, QueueKind::Request] {
            assert_eq!(outcome(&bytes, queue), Status::Unsupported, "{code:#x}");
        }
    }
}

#[test]
fn streams_end_below_the_limit() {
    for request in valid() {
        for (stream, expect) in [
            (0, Status::Ok),
            (MAX_STREAMS - 1, Status::Ok),
            (MAX_STREAMS, Status::BadStream),
            (u32::MAX, Status::BadStream),
        ] {
            let bytes = request.encode(Header { tag: TAG, context: 1, stream });
            assert_eq!(outcome(&bytes, request.opcode().queue()), expect, "{request:?}, stream {stream}");
        }
    }
}

#[test]
fn queues_are_of_their_kind() {
    assert_eq!(QueueKind::of(0), QueueKind::Control);
    assert_eq!(QueueKind::of(1), QueueKind::Event);
    assert_eq!(QueueKind::of(2), QueueKind::Request);
    assert_eq!(QueueKind::of(u16::MAX), QueueKind::Request);
}

#[test]
fn hello_epoch_zero_is_bad_request_and_its_version_is_left_to_the_session() {
    let hello = |abi_major, driver_epoch| Request::Hello(Hello { abi_major, abi_minor: 9, driver_epoch });
    assert_eq!(status(hello(1, 0)), Status::BadRequest);
    assert_eq!(status(hello(1, u64::MAX)), Status::Ok);
    assert_eq!(status(hello(0, 1)), Status::Ok);
    assert_eq!(status(hello(2, 1)), Status::Ok);
}

#[test]
fn context_open_label_is_any_bytes() {
    for label in [[0; 32], [0xff; 32]] {
        assert_eq!(status(Request::ContextOpen(ContextOpen { label })), Status::Ok);
    }
}

#[test]
fn alloc_length_zero_and_odd_alignments_are_refused() {
    let alloc = |length, alignment| status(Request::Alloc(Alloc { length, alignment }));
    assert_eq!(alloc(0, 256), Status::BadLength);
    assert_eq!(alloc(u64::MAX, 256), Status::Ok, "limits are the session's");
    for power in 0..=30 {
        assert_eq!(alloc(1, 1 << power), Status::Ok, "2^{power}");
    }
    for alignment in
        [3, 255, 257, MAX_ALIGNMENT - 1, MAX_ALIGNMENT + 1, MAX_ALIGNMENT << 1, 1 << 63, u64::MAX]
    {
        assert_eq!(alloc(1, alignment), Status::BadAlignment, "{alignment}");
    }
}

#[test]
fn free_and_query_take_any_address() {
    for address in [0, 1, u64::MAX] {
        assert_eq!(status(Request::Free(address)), Status::Ok);
        assert_eq!(status(Request::Query(Query { address, first_extent: 0 })), Status::Ok);
    }
}

#[test]
fn advise_ranges_are_checked_whatever_their_length() {
    let advise = |address, length| {
        status(Request::Advise(Advise { range: Range { address, length }, advice: Advice::Cold }))
    };
    assert_eq!(advise(ADDRESS, 0), Status::BadLength);
    assert_eq!(advise(ADDRESS, 1), Status::Ok);
    assert_eq!(advise(0, u64::MAX), Status::Ok, "no upper limit but the allocation");
    assert_eq!(advise(1, u64::MAX), Status::BadAddress);
}

#[test]
fn advise_of_unknown_advice_or_with_an_argument_too_many_is_bad_request() {
    let range = Range { address: ADDRESS, length: 1 };
    let advise = |advice: u32, argument: u32| {
        let mut bytes = bytes(&Request::Advise(Advise { range, advice: Advice::Cold }));
        bytes[BODY + 16..BODY + 20].copy_from_slice(&advice.to_le_bytes());
        bytes[BODY + 20..BODY + 24].copy_from_slice(&argument.to_le_bytes());
        outcome(&bytes, QueueKind::Control)
    };
    for advice in 1..=4 {
        assert_eq!(advise(advice, 0), Status::Ok, "{advice}");
        for argument in [1, u32::MAX] {
            assert_eq!(advise(advice, argument), Status::BadRequest, "{advice}, {argument}");
        }
    }
    for gpu in [0, 1, u32::MAX] {
        assert_eq!(advise(5, gpu), Status::Ok, "which GPUs there are is the session's");
    }
    for advice in [0, 6, 0x100, u32::MAX] {
        assert_eq!(advise(advice, 0), Status::BadRequest, "{advice}");
    }
}

#[test]
fn write_and_read_lengths_are_checked() {
    for make in [Request::Write, Request::Read] {
        let range = |address, length| status(make(Range { address, length }));
        assert_eq!(range(ADDRESS, 0), Status::BadLength);
        assert_eq!(range(ADDRESS, 1), Status::Ok);
        assert_eq!(range(ADDRESS, MAX_TRANSFER_BYTES), Status::Ok);
        assert_eq!(range(ADDRESS, MAX_TRANSFER_BYTES + 1), Status::BadLength);
        assert_eq!(range(u64::MAX - 7, 7), Status::Ok, "ends at the last byte that has an end");
        assert_eq!(range(u64::MAX - 7, 9), Status::BadAddress);
        assert_eq!(range(u64::MAX, 1), Status::BadAddress);
    }
}

#[test]
fn copy_ranges_may_touch_and_not_overlap() {
    let copy = |destination, source, length| status(Request::Copy(Copy { destination, source, length }));
    assert_eq!(copy(ADDRESS, 2 * ADDRESS, 0), Status::BadLength);
    assert_eq!(copy(ADDRESS, ADDRESS, 1), Status::Overlap);
    assert_eq!(copy(ADDRESS, ADDRESS + 16, 16), Status::Ok);
    assert_eq!(copy(ADDRESS, ADDRESS + 16, 17), Status::Overlap);
    assert_eq!(copy(ADDRESS + 16, ADDRESS, 16), Status::Ok);
    assert_eq!(copy(ADDRESS + 16, ADDRESS, 17), Status::Overlap);
    assert_eq!(copy(0, 1 << 62, 1 << 62), Status::Ok, "no upper limit but the allocations");
    assert_eq!(copy(u64::MAX - 7, 0, 9), Status::BadAddress);
    assert_eq!(copy(0, u64::MAX - 7, 9), Status::BadAddress);
}

#[test]
fn fill_width_and_what_follows_from_it_are_checked() {
    let fill = |address, length, width| {
        status(Request::Fill(Fill { range: Range { address, length }, pattern: 0xffff_ffff, width }))
    };
    for width in [1, 2, 4] {
        assert_eq!(fill(ADDRESS, 4, width), Status::Ok);
    }
    for width in [0, 3, 5, 8, u32::MAX] {
        assert_eq!(fill(ADDRESS, 8, width), Status::BadAlignment, "{width}");
    }
    assert_eq!(fill(ADDRESS, 0, 4), Status::BadLength);
    assert_eq!(fill(ADDRESS + 1, 3, 1), Status::Ok);
    assert_eq!(fill(ADDRESS + 1, 2, 2), Status::BadAlignment);
    assert_eq!(fill(ADDRESS, 3, 2), Status::BadAlignment);
    assert_eq!(fill(ADDRESS + 2, 4, 4), Status::BadAlignment);
    assert_eq!(fill(ADDRESS, 6, 4), Status::BadAlignment);
    assert_eq!(fill(u64::MAX - 3, 4, 4), Status::BadAddress);
    assert_eq!(fill(0, u64::MAX - 3, 4), Status::Ok, "no upper limit but the allocations");
}

#[test]
fn first_failing_check_decides() {
    // One request with everything wrong, mended in the order of section 2.3.
    let mut bytes = bytes(&Request::Write(Range { address: ADDRESS, length: 0 }));
    bytes[0..2].copy_from_slice(&0x7fffu16.to_le_bytes());
    bytes[2] = 1;
    bytes[20] = 1;
    bytes[BODY + 16] = 1;
    bytes[16..20].copy_from_slice(&MAX_STREAMS.to_le_bytes());
    assert_eq!(outcome(&bytes, QueueKind::Control), Status::Unsupported);
    bytes[0..2].copy_from_slice(&Opcode::Write.code().to_le_bytes());
    assert_eq!(outcome(&bytes, QueueKind::Control), Status::WrongQueue);
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::BadRequest);
    bytes[2] = 0;
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::BadRequest);
    bytes[20] = 0;
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::BadRequest);
    bytes[BODY + 16] = 0;
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::BadStream);
    bytes[16..20].copy_from_slice(&0u32.to_le_bytes());
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::BadLength);
    bytes[BODY + 8] = 1;
    assert_eq!(outcome(&bytes, QueueKind::Request), Status::Ok);
}
