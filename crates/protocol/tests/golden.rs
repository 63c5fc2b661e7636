//! Every message against bytes that were written from `docs/protocol.md`, not by this crate: both ways.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use vram_protocol::{
    Advice, Advise, Alloc, ConfigSpace, ContextOpen, Copy, DEVICE_SIMULATED, EVENT_DATA_LOST, EVENT_GPU_LOST,
    EVENT_LIMIT_CHANGED, EVENT_MISSED, EventMessage, Extent, Fill, GPU_HOME, GPU_NONE, GpuEntry, Header,
    Hello, HelloReply, InfoReply, Query, QueryReply, QueueKind, Range, Request, Response, Status,
    TIER_DAMAGED, TIER_DISK, TIER_GPU, TIER_LOST,
};

const TAG: u64 = 0x1122_3344_5566_7788;
const EPOCH: u64 = 0xa1a2_a3a4_a5a6_a7a8;
const ADDRESS: u64 = 0x7f12_3400_0000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The bytes of a golden file: pairs of hexadecimal digits; `#` begins a comment.
fn golden<const N: usize>(name: &str) -> [u8; N] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.hex"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let words = text.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace());
    let bytes: Vec<u8> = words.map(|word| u8::from_str_radix(word, 16).unwrap()).collect();
    bytes.try_into().unwrap_or_else(|bytes: Vec<u8>| panic!("{name} has {} bytes, expected {N}", bytes.len()))
}

fn padded(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn header(context: u32, stream: u32) -> Header {
    Header { tag: TAG, context, stream }
}

/// Every golden request with what it means.
fn requests() -> Vec<(&'static str, Header, Request)> {
    let hello = Hello { abi_major: 1, abi_minor: 0, driver_epoch: 0x0102_0304_0506_0708 };
    vec![
        ("hello", header(0, 0), Request::Hello(hello)),
        ("info", header(0, 0), Request::Info),
        ("context-open", header(0, 0), Request::ContextOpen(ContextOpen { label: padded("train") })),
        ("context-close", header(7, 0), Request::ContextClose),
        ("alloc", header(7, 0), Request::Alloc(Alloc { length: MIB + 1, alignment: 2 * MIB })),
        ("free", header(7, 0), Request::Free(ADDRESS)),
        ("query", header(7, 0), Request::Query(Query { address: ADDRESS + 5, first_extent: 2 })),
        (
            "advise",
            header(7, 0),
            Request::Advise(Advise {
                range: Range { address: ADDRESS, length: 130 * MIB },
                advice: Advice::Pin,
            }),
        ),
        (
            "advise-prefer-gpu",
            header(7, 0),
            Request::Advise(Advise {
                range: Range { address: ADDRESS + 1, length: 1 },
                advice: Advice::PreferGpu { gpu: 3 },
            }),
        ),
        ("write", header(7, 3), Request::Write(Range { address: ADDRESS, length: 4096 })),
        ("read", header(7, 1023), Request::Read(Range { address: ADDRESS, length: 4 * MIB })),
        (
            "copy",
            header(7, 1),
            Request::Copy(Copy { destination: ADDRESS, source: ADDRESS + GIB, length: GIB }),
        ),
        (
            "fill",
            header(7, 0),
            Request::Fill(Fill {
                range: Range { address: ADDRESS, length: 64 },
                pattern: 0xdead_beef,
                width: 4,
            }),
        ),
        ("fence", header(7, 9), Request::Fence { all_streams: false }),
        ("fence-all-streams", header(7, 0), Request::Fence { all_streams: true }),
    ]
}

#[test]
fn every_request_decodes_and_encodes_as_written() {
    for (name, header, request) in requests() {
        let bytes = golden::<64>(name);
        assert_eq!(Request::decode(&bytes, request.opcode().queue()), Ok((header, request)), "{name}");
        assert_eq!(request.encode(header), bytes, "{name}");
    }
}

#[test]
fn every_opcode_has_a_golden_request() {
    let covered: BTreeSet<u16> = requests().iter().map(|(_, _, request)| request.opcode().code()).collect();
    let all: BTreeSet<u16> = vram_protocol::Opcode::ALL.iter().map(|(opcode, _)| opcode.code()).collect();
    assert_eq!(covered, all);
}

/// Every golden response with what it means.
fn responses() -> Vec<(&'static str, Response)> {
    let response = |status, moved, value| Response { status, tag: TAG, moved, value, epoch: EPOCH };
    vec![
        ("response-write", response(Status::Ok, 4096, 0)),
        ("response-alloc", response(Status::Ok, 0, ADDRESS)),
        ("response-buffer-too-small", response(Status::BufferTooSmall, 0, 160)),
        ("response-transfer-failed", response(Status::TransferFailed, 2048, 0)),
        ("response-data-lost", response(Status::DataLost, 4096, 0)),
    ]
}

#[test]
fn every_response_decodes_and_encodes_as_written() {
    for (name, response) in responses() {
        let bytes = golden::<40>(name);
        assert_eq!(Response::from_bytes(&bytes), Some(response), "{name}");
        assert_eq!(response.to_bytes(), bytes, "{name}");
    }
}

#[test]
fn response_of_unknown_status_is_none() {
    let mut bytes = golden::<40>("response-write");
    bytes[3] = 0x80;
    assert_eq!(Response::from_bytes(&bytes), None);
}

/// Compares a structure of the device with its golden file, both ways; gives the name back.
macro_rules! both_ways {
    ($name:literal, $type:ident $fields:tt) => {{
        let value = $type $fields;
        let bytes = golden::<{ $type::BYTES }>($name);
        assert_eq!($type::from_bytes(&bytes), value, $name);
        assert_eq!(value.to_bytes(), bytes, $name);
        $name
    }};
}

fn structures() -> Vec<&'static str> {
    vec![
        both_ways!(
            "config",
            ConfigSpace {
                magic: 0x4d41_5256,
                abi_major: 1,
                abi_minor: 1,
                request_queues: 4,
                reserved0: 0,
                max_segments: 1024,
                max_transfer_bytes: 4 * MIB,
                boot_epoch: EPOCH,
                reserved1: [0; 32],
            }
        ),
        both_ways!(
            "hello-reply",
            HelloReply {
                abi_major: 1,
                abi_minor: 1,
                max_contexts: 1024,
                max_allocations: 1_048_576,
                max_streams: 1024,
                band_base: ADDRESS,
                band_length: 64 * GIB,
                limit_bytes: 8 * GIB,
                max_transfer_bytes: 4 * MIB,
                min_alignment: 256,
                gpu_count: 2,
                flags: DEVICE_SIMULATED,
                reserved0: 0,
            }
        ),
        both_ways!(
            "info-reply",
            InfoReply {
                limit_bytes: 8 * GIB,
                guarantee_bytes: 2 * GIB,
                allocated_bytes: MIB + 256,
                backed_bytes: 64 * MIB,
                shard_bytes: 64 * MIB,
                gpu_count: 2,
                flags: 0,
                allocations: 1,
                contexts: 3,
                reserved0: 0,
                slice_name: padded("tenant-a"),
            }
        ),
        both_ways!(
            "gpu-entry",
            GpuEntry {
                index: 1,
                flags: GPU_HOME,
                slice_bytes: 64 * MIB,
                total_bytes: 80 * GIB,
                reserved0: 0,
                name: padded("GPU model"),
            }
        ),
        both_ways!(
            "query-reply",
            QueryReply { base: ADDRESS, length: 130 * MIB, extent_count: 1, extent_total: 3, reserved0: 0 }
        ),
        both_ways!(
            "extent",
            Extent { address: ADDRESS + 128 * MIB, length: 2 * MIB, gpu: 1, tier: TIER_GPU, reserved0: 0 }
        ),
        both_ways!(
            "extent-lost",
            Extent { address: ADDRESS, length: 64 * MIB, gpu: 0, tier: TIER_LOST, reserved0: 0 }
        ),
        both_ways!(
            "extent-stored",
            Extent { address: ADDRESS, length: 64 * MIB, gpu: GPU_NONE, tier: TIER_DISK, reserved0: 0 }
        ),
        both_ways!(
            "extent-damaged",
            Extent { address: ADDRESS, length: 64 * MIB, gpu: GPU_NONE, tier: TIER_DAMAGED, reserved0: 0 }
        ),
        both_ways!(
            "event-gpu-lost",
            EventMessage { kind: EVENT_GPU_LOST, reserved0: 0, epoch: EPOCH, value: 3, extra: 0 }
        ),
        both_ways!(
            "event-data-lost",
            EventMessage {
                kind: EVENT_DATA_LOST,
                reserved0: 0,
                epoch: EPOCH,
                value: ADDRESS,
                extra: 64 * MIB,
            }
        ),
        both_ways!(
            "event-limit-changed",
            EventMessage {
                kind: EVENT_LIMIT_CHANGED,
                reserved0: 0,
                epoch: EPOCH,
                value: 8 * GIB,
                extra: 2 * GIB,
            }
        ),
        both_ways!(
            "event-missed",
            EventMessage { kind: EVENT_MISSED, reserved0: 0, epoch: EPOCH, value: 7, extra: 0 }
        ),
        both_ways!(
            "event",
            EventMessage { kind: 0x77, reserved0: 0, epoch: EPOCH, value: 0x11, extra: 0x22 }
        ),
    ]
}

#[test]
fn every_structure_of_the_device_decodes_and_encodes_as_written() {
    structures();
}

#[test]
fn config_of_a_device_is_the_golden_one() {
    assert_eq!(ConfigSpace::new(4, EPOCH).to_bytes(), golden::<64>("config"));
}

#[test]
fn every_golden_file_is_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let names = requests().into_iter().map(|(name, _, _)| name);
    let names = names.chain(responses().into_iter().map(|(name, _)| name)).chain(structures());
    assert_eq!(files, names.map(str::to_owned).collect());
}

#[test]
fn every_golden_request_on_another_queue_is_wrong_queue() {
    for (name, _, request) in requests() {
        for queue in [QueueKind::Control, QueueKind::Event, QueueKind::Request] {
            if queue != request.opcode().queue() {
                let error = Request::decode(&golden::<64>(name), queue).unwrap_err();
                assert_eq!((error.status, error.tag), (Status::WrongQueue, TAG), "{name} on {queue:?}");
            }
        }
    }
}
