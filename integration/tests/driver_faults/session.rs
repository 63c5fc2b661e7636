//! Sessions that are lost: files that used the old one are told, all others go on with the new one.

use std::time::Duration;

use vram_integration::{Fault, Requests, When};
use vram_protocol::{Opcode, Status};

use crate::calls::Calls;
use crate::{Bench, LENGTH, MIB, bench};

/// Opens a file that has a context and bytes, and returns their address.
fn open_with_bytes(calls: &mut Calls<'_>, file: u32) -> u64 {
    calls.expect(file, "open", "OK");
    let address = calls.alloc(file, LENGTH);
    calls.expect(file, &format!("write {address} {LENGTH}"), "OK");
    address
}

/// Every call of such a file fails, whatever happens, and its end does nothing to others.
fn assert_stale(calls: &mut Calls<'_>, file: u32, address: u64) {
    for call in [
        format!("write {address} 100"),
        format!("read {address} {LENGTH}"),
        "info".into(),
        "fence".into(),
        format!("free {address}"),
        format!("alloc {MIB}"),
    ] {
        calls.expect(file, &call, "ESTALE");
    }
}

fn assert_session_loss_is_survived(bench: &Bench) {
    let timeout = Duration::from_secs(4);
    bench.set_timeout(timeout);
    let mut calls = bench.calls("calls");
    let old = open_with_bytes(&mut calls, 0);
    calls.expect(1, "open", "OK");
    let old_epoch = calls.expect(0, "version", "OK").value;

    // A new epoch, seen in an answer. Contexts get the numbers again that the old ones had.
    bench.device.start_anew();
    calls.expect(0, &format!("read {old} {LENGTH}"), "ESTALE");
    assert_stale(&mut calls, 0, old);
    let new = open_with_bytes(&mut calls, 2);
    calls.alloc(1, MIB);
    assert_ne!(calls.expect(2, "version", "OK").value, old_epoch);
    assert_stale(&mut calls, 0, old);
    calls.expect(0, "close", "OK");
    assert_eq!(calls.expect(2, "info", "OK").value, 2);
    assert_eq!(calls.expect(2, &format!("read {new} {LENGTH}"), "OK").same, LENGTH);

    // The same epoch, but the session is forgotten.
    bench.device.forget_session();
    calls.expect(2, &format!("fill {new} 4096 1"), "ESTALE");
    let newer = open_with_bytes(&mut calls, 0);
    assert_stale(&mut calls, 2, new);
    calls.expect(2, "close", "OK");
    calls.expect(1, "close", "OK");
    assert_eq!(calls.expect(0, "info", "OK").value, 1);

    // A new epoch, seen in an event.
    bench.device.start_anew();
    let new_epoch = calls.expect(3, "open", "OK");
    bench.device.send_event(77);
    calls.expect(0, "fence", "ESTALE");
    assert_stale(&mut calls, 0, newer);
    assert!(calls.expect(3, "version", "OK").value > new_epoch.value);
    calls.expect(0, "close", "OK");

    // Requests that got lost with the daemon: nothing comes until the driver asks whether it is there.
    let lost = open_with_bytes(&mut calls, 0);
    let before = bench.device.unanswered();
    bench.device.arm(Fault::Silence, Requests::Data, When::Always);
    let transfers = (0..4).map(|stream| (0, format!("read {lost} {LENGTH} {stream}")));
    let waiting = calls.begin(&transfers.collect::<Vec<_>>());
    bench.wait_for_unanswered(before, 12);
    bench.device.start_anew();
    bench.device.behave();
    for id in waiting {
        let outcome = calls.end(id);
        assert_eq!((outcome.error.as_str(), outcome.moved), ("ESTALE", 0), "{outcome:?}");
        assert!(outcome.took < timeout, "{outcome:?}");
    }
    bench.wait_until_unpinned();
    calls.expect(0, "close", "OK");

    // A device that says it forgot the session but did not: what it keeps is nobody's, and must not stay.
    let kept = open_with_bytes(&mut calls, 0);
    bench.device.arm(Fault::Status(Status::NotReady.code()), Requests::Of(Opcode::Read), When::Nth(1));
    calls.expect(0, &format!("read {kept} {LENGTH}"), "ESTALE");
    assert_stale(&mut calls, 0, kept);
    bench.wait_for_contexts(0);
    assert_eq!(bench.device.allocations(), 0);

    // A new session that does not come.
    bench.set_timeout(Duration::from_secs(1));
    bench.device.arm(Fault::Silence, Requests::Of(Opcode::Hello), When::Nth(1));
    bench.device.start_anew();
    calls.expect(1, "open", "OK");
    calls.expect(1, &format!("alloc {MIB}"), "ENODEV");
    calls.expect(1, "version", "ENODEV");

    calls.kill();
    bench.rebind();
    bench.assert_works();
}

#[test]
fn session_lost_is_told_to_files_that_used_it_and_to_no_others() {
    let bench = bench("6.12");
    assert_session_loss_is_survived(&bench);
    bench.finish();
}

#[test]
fn session_lost_is_survived_on_kernel_6_1() {
    let bench = bench("6.1");
    assert_session_loss_is_survived(&bench);
    bench.finish();
}

#[test]
fn session_lost_is_survived_on_kernel_7() {
    let bench = bench("7");
    assert_session_loss_is_survived(&bench);
    bench.finish();
}
