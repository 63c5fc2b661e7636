//! Answers that do not come, or come late: every wait ends, and nothing is freed too early or never.

use std::time::Duration;

use vram_integration::{Fault, Requests, When, wait_until};
use vram_protocol::Opcode;

use crate::calls::Outcome;
use crate::{FAR_TIMEOUT, LENGTH, MIB, SHORT, SLACK, bench};

const TIMEOUT: Duration = Duration::from_millis(4000);

/// Somebody is told that the device does not answer, the others that it is gone, all in time.
fn assert_given_up(outcomes: &[Outcome], limit: Duration) {
    for outcome in outcomes {
        let is_expected = ["ETIMEDOUT", "ENODEV"].contains(&outcome.error.as_str());
        assert!(is_expected && outcome.took < limit, "{outcomes:?}");
    }
    assert!(outcomes.iter().any(|outcome| outcome.error == "ETIMEDOUT"), "{outcomes:?}");
}

#[test]
fn silent_device_is_given_up_in_time_and_used_again_after_a_reload() {
    let bench = bench("6.12");
    bench.set_timeout(TIMEOUT);
    let mut victim = bench.calls("victim");
    victim.expect(0, "open", "OK");
    let victims = victim.alloc(0, LENGTH);
    let mut calls = bench.calls("calls");
    calls.begin(&[(0, "open".into()), (1, "open".into()), (2, "open".into())]).iter().for_each(|id| {
        assert_eq!(calls.end(*id).error, "OK");
    });
    let address = calls.alloc(0, LENGTH);
    calls.alloc(1, MIB);
    let before = bench.device.unanswered();

    bench.device.arm(Fault::Silence, Requests::All, When::Always);
    let waiting = calls.begin(&[
        (0, format!("write {address} {LENGTH} 0")),
        (0, format!("read {address} {LENGTH} 1")),
        (0, format!("copy {address} {} 4096", address + MIB)),
        (0, "fence".into()),
        (0, "info".into()),
        (1, format!("alloc {MIB}")),
        // Its context is opened first.
        (2, format!("alloc {MIB}")),
    ]);
    victim.begin(&[(0, format!("read {victims} {LENGTH}"))]);
    bench.wait_for_unanswered(before, 14);
    let killed = victim.kill();
    assert!(killed < TIMEOUT / 2, "a process that waits for the device took {killed:?} to be killed");
    let outcomes: Vec<Outcome> = waiting.iter().map(|id| calls.end(*id)).collect();
    println!("{outcomes:?}");
    assert_given_up(&outcomes, TIMEOUT + SLACK);
    let told = outcomes.iter().filter(|outcome| outcome.error == "ETIMEDOUT");
    assert!(told.min_by_key(|outcome| outcome.took).unwrap().took > TIMEOUT * 9 / 10, "{outcomes:?}");

    for call in [format!("write {address} 1"), "version".into(), "info".into(), format!("free {address}")] {
        let after = calls.expect(0, &call, "ENODEV");
        assert!(after.took < SLACK, "{call}: {after:?}");
    }
    calls.expect(3, "open", "OK");
    calls.expect(3, "alloc 1", "ENODEV");
    let closed = calls.expect(0, "close", "OK");
    assert!(closed.took < SLACK, "{closed:?}");
    assert!(bench.pinned() > 0, "the device still has the requests");
    calls.kill();
    // The reset takes them from it.
    bench.unload();
    bench.wait_until_unpinned();

    bench.device.behave();
    bench.load();
    bench.wait_for_contexts(0);
    bench.assert_works();
    bench.finish();
}

#[test]
fn late_answers_do_no_harm() {
    let bench = bench("6.12");
    let timeout = Duration::from_millis(1000);
    bench.set_timeout(timeout);
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    calls.expect(0, &format!("write {address} {LENGTH}"), "OK");

    let late = Fault::Late(timeout + Duration::from_millis(2500));
    bench.device.arm(late, Requests::Of(Opcode::Read), When::Always);
    let outcome = calls.expect(0, &format!("read {address} {LENGTH}"), "ETIMEDOUT");
    assert!(outcome.took > timeout * 9 / 10 && outcome.took < timeout + SLACK, "{outcome:?}");
    assert_eq!(outcome.moved, 0);
    assert!(bench.pinned() > 0, "the device may still write to the memory");
    // The process unmaps it and ends; the answers come all the same, and let it go without a reset.
    calls.kill();
    bench.wait_until_unpinned();
    bench.device.behave();
    bench.rebind();
    bench.assert_works();

    // Late enough for the process to be killed meanwhile, but in time.
    bench.set_timeout(FAR_TIMEOUT);
    for opcode in [Opcode::ContextOpen, Opcode::Alloc, Opcode::Write, Opcode::Read] {
        let mut victim = bench.calls("victim");
        victim.expect(0, "open", "OK");
        let before = bench.device.unanswered();
        let late = Fault::Late(Duration::from_millis(1500));
        bench.device.arm(late, Requests::Of(opcode), When::Nth(1));
        match opcode {
            Opcode::ContextOpen | Opcode::Alloc => drop(victim.begin(&[(0, format!("alloc {MIB}"))])),
            _ => {
                let address = victim.alloc(0, MIB);
                let call = if opcode == Opcode::Write { "write" } else { "read" };
                victim.begin(&[(0, format!("{call} {address} {MIB}"))]);
            }
        }
        bench.wait_for_unanswered(before, 1);
        let killed = victim.kill();
        assert!(killed < Duration::from_millis(1200), "{opcode:?}: killing took {killed:?}");
        bench.wait_for_contexts(0);
        bench.wait_until_unpinned();
        assert_eq!(bench.device.allocations(), 0, "{opcode:?}");
    }

    // The file stays open without the one who asked: what came of it is undone.
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    bench.device.arm(Fault::Late(Duration::from_millis(1500)), Requests::Of(Opcode::Alloc), When::Nth(1));
    let doomed = calls.expect(0, &format!("doomed_alloc {MIB} 500"), "OK");
    assert!(doomed.value < 500, "killing took {} ms", doomed.value);
    assert_eq!(bench.device.allocations(), 2);
    wait_until("the allocation to be undone", SHORT, || Ok(bench.device.allocations() == 1)).unwrap();
    calls.expect(0, &format!("write {address} {LENGTH}"), "OK");
    calls.kill();
    bench.wait_for_contexts(0);
    bench.assert_works();
    bench.finish();
}

#[test]
fn lost_requests_and_broken_rings_end_all_waits() {
    let bench = bench("6.12");
    let timeout = Duration::from_millis(500);

    // Half of the requests are answered, so there always is some progress; the cap of the waits is 12 timeouts.
    bench.set_timeout(timeout);
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    bench.device.arm(Fault::Silence, Requests::Data, When::EveryOther);
    let transfers = (0..4).map(|stream| (0, format!("write {address} {LENGTH} {stream}")));
    let waiting = calls.begin(&transfers.collect::<Vec<_>>());
    let outcomes: Vec<Outcome> = waiting.iter().map(|id| calls.end(*id)).collect();
    println!("{outcomes:?}");
    assert_given_up(&outcomes, 12 * timeout + SLACK);
    calls.kill();
    bench.device.behave();
    bench.rebind();
    bench.assert_works();

    // One request is lost, and its queue has progress all the time.
    let mut calls = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    bench.device.arm(Fault::Silence, Requests::Of(Opcode::Copy), When::Nth(1));
    let lost = calls.begin(&[(0, format!("copy {address} {} 4096", address + MIB))])[0];
    while calls.call(0, &format!("write {address} 4096")).error == "OK" {}
    let lost = calls.end(lost);
    assert!(lost.error == "ETIMEDOUT" && lost.took < 12 * timeout + SLACK, "{lost:?}");
    calls.kill();
    bench.rebind();
    bench.assert_works();

    bench.set_timeout(FAR_TIMEOUT);
    for opcode in [Opcode::Write, Opcode::Alloc] {
        let mut calls = bench.calls("calls");
        calls.expect(0, "open", "OK");
        let address = calls.alloc(0, LENGTH);
        bench.device.arm(Fault::UnknownChain, Requests::Of(opcode), When::Nth(1));
        let call = if opcode == Opcode::Write {
            format!("write {address} {LENGTH}")
        } else {
            format!("alloc {MIB}")
        };
        let outcome = calls.expect(0, &call, "ENODEV");
        assert!(outcome.took < SLACK, "{opcode:?}: {outcome:?}");
        calls.expect(0, "info", "ENODEV");
        calls.kill();
        bench.rebind();
        bench.assert_works();
    }
    bench.finish();
}
