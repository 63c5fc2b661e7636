//! Wrong answers: each call ends with the errno of `vram_ioctl.h`, the next one works, nothing is left.

use vram_integration::{Fault, Requests, When};
use vram_protocol::{Opcode, Status};

use crate::{LENGTH, MIB, bench};

/// NOT_READY is not here: it says that the session is lost.
const STATUSES: &[(Status, &str)] = &[
    (Status::BadChain, "EIO"),
    (Status::BadRequest, "EINVAL"),
    (Status::Unsupported, "EIO"),
    (Status::WrongQueue, "EIO"),
    (Status::BadVersion, "EIO"),
    (Status::NoContext, "ESTALE"),
    (Status::BadAddress, "ENXIO"),
    (Status::BadLength, "EINVAL"),
    (Status::BadAlignment, "EINVAL"),
    (Status::BadStream, "EINVAL"),
    (Status::BufferTooSmall, "EIO"),
    (Status::OutOfMemory, "ENOMEM"),
    (Status::OverLimit, "EDQUOT"),
    (Status::TooMany, "EMFILE"),
    (Status::Overlap, "EINVAL"),
    (Status::DeviceLost, "ENODEV"),
    (Status::TransferFailed, "EIO"),
    (Status::Cancelled, "ESTALE"),
    (Status::Internal, "EIO"),
    (Status::DataLost, "EBADMSG"),
];

#[test]
fn statuses_become_the_errno_of_their_table_and_leave_nothing() {
    let bench = bench("6.12");
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, MIB);
    let known = STATUSES.iter().map(|(status, error)| (status.code(), *error));

    for (status, error) in known.chain([(22, "EIO"), (999, "EIO"), (u32::MAX, "EIO")]) {
        bench.device.arm(Fault::Status(status), Requests::All, When::Nth(1));
        // What is asked changes from one to the next, so that every opcode has its turn.
        let (call, has_moved) = match status % 7 {
            0 => (format!("alloc {MIB}"), false),
            1 => (format!("write {address} {MIB}"), true),
            2 => (format!("read {address} {MIB}"), true),
            3 => (format!("copy {address} {} 4096", address + 8192), true),
            4 => (format!("fill {address} 4096 7"), true),
            5 => ("fence".to_string(), false),
            _ => (format!("free {address}"), false),
        };
        let outcome = calls.expect(0, &call, error);
        assert!(!has_moved || outcome.moved == 0, "{call} with status {status}: {outcome:?}");
    }

    calls.expect(0, &format!("write {address} {MIB}"), "OK");
    assert_eq!((bench.device.contexts(), bench.device.allocations()), (1, 1));
    calls.kill();
    bench.wait_for_contexts(0);
    bench.assert_works();
    bench.finish();
}

#[test]
fn answers_that_break_the_protocol_are_eio_and_leave_nothing() {
    let bench = bench("6.12");
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    let (write, read) = (format!("write {address} 100"), format!("read {address} 100"));
    let one_of = |opcode, fault| bench.device.arm(fault, Requests::Of(opcode), When::Nth(1));

    // A response is 40 bytes; a READ of 100 bytes has 140.
    let used_lengths = [0, 12, 39, 41, 100_000_000, u32::MAX].map(Fault::UsedLength);
    let moved = [0, 99, 101, u64::MAX].map(Fault::Moved);
    for fault in used_lengths.iter().chain(&moved).chain(&[Fault::WrongTag]) {
        one_of(Opcode::Write, *fault);
        assert_eq!(calls.expect(0, &write, "EIO").moved, 0, "{fault:?}");
    }
    for fault in [Fault::UsedLength(39), Fault::UsedLength(139), Fault::UsedLength(141), Fault::Moved(99)] {
        one_of(Opcode::Read, fault);
        assert_eq!(calls.expect(0, &read, "EIO").moved, 0, "{fault:?}");
    }
    for (opcode, call) in [
        (Opcode::Info, "info".to_string()),
        (Opcode::Query, format!("query {address}")),
        (Opcode::Alloc, format!("alloc {MIB}")),
        (Opcode::Fence, "fence".to_string()),
    ] {
        for fault in [Fault::UsedLength(39), Fault::UsedLength(100_000), Fault::WrongTag] {
            one_of(opcode, fault);
            calls.expect(0, &call, "EIO");
        }
    }
    // Another file: its context cannot be opened, but then it can.
    calls.expect(1, "open", "OK");
    one_of(Opcode::ContextOpen, Fault::WrongTag);
    calls.expect(1, &format!("alloc {MIB}"), "EIO");
    calls.alloc(1, MIB);

    calls.expect(0, &write, "OK");
    assert_eq!(calls.expect(0, &read, "OK").same, 100);
    calls.kill();
    bench.device.forget_session();
    bench.finish();
}

/// What has moved is told exactly: what lies behind a gap does not count.
#[test]
fn transfers_that_fail_midway_tell_how_far_they_got() {
    let bench = bench("6.12");
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    let (write, read) = (format!("write {address} {LENGTH}"), format!("read {address} {LENGTH}"));
    let fail = |opcode, nth| bench.device.arm(Fault::Partial, Requests::Of(opcode), When::Nth(nth));

    // How long a request is depends on how the guest's memory lies, so what was moved is counted in the bytes.
    for nth in [3, 2, 1] {
        calls.expect(0, &format!("fill {address} {LENGTH} 0"), "OK");
        fail(Opcode::Write, nth);
        let moved = calls.expect(0, &write, "EIO").moved;
        assert!(moved > 0 && moved < LENGTH, "{moved} bytes written");
        assert_eq!(calls.expect(0, &read, "OK").same, moved, "bytes written, with failure {nth}");
    }
    calls.expect(0, &write, "OK");
    for nth in [3, 2, 1] {
        fail(Opcode::Read, nth);
        let outcome = calls.expect(0, &read, "EIO");
        assert!(outcome.moved > 0 && outcome.moved < LENGTH, "{outcome:?}");
        assert_eq!(outcome.same, outcome.moved, "bytes read, with failure {nth}");
    }
    fail(Opcode::Copy, 1);
    let copy = format!("copy {address} {} {MIB}", address + 4 * MIB);
    assert_eq!(calls.expect(0, &copy, "EIO").moved, MIB / 2);
    fail(Opcode::Fill, 1);
    assert_eq!(calls.expect(0, &format!("fill {address} {MIB} 5"), "EIO").moved, MIB / 2);

    // Events of a kind nobody knows come in between; there are fewer buffers than events.
    for _ in 0..40 {
        bench.device.send_event(77);
    }
    calls.expect(0, &write, "OK");
    assert_eq!(calls.expect(0, &read, "OK").same, LENGTH);
    assert_eq!(bench.device.events_waiting(), 0);
    calls.kill();
    bench.wait_for_contexts(0);
    assert_eq!(bench.device.allocations(), 0);
    bench.finish();
}
