//! The device goes away, while requests are under way that it will never answer.

use std::time::Duration;

use vram_integration::{Fault, Requests, When};

use crate::calls::Calls;
use crate::{Bench, FAR_TIMEOUT, LENGTH, SHORT, SLACK, bench};

/// Transfers in flight; `take_away` takes the device from under them, `bring_back` has it there again.
fn assert_removal_is_survived(bench: &Bench, take_away: &str, bring_back: &str) {
    let mut calls: Calls<'_> = bench.calls("calls");
    calls.expect(0, "open", "OK");
    let address = calls.alloc(0, LENGTH);
    let before = bench.device.unanswered();
    bench.device.arm(Fault::Silence, Requests::Data, When::Always);
    let transfer = |stream| if stream % 2 == 0 { "write" } else { "read" };
    let transfers = (0..4).map(|stream| (0, format!("{} {address} {LENGTH} {stream}", transfer(stream))));
    let waiting = calls.begin(&transfers.collect::<Vec<_>>());
    bench.wait_for_unanswered(before, 12);

    bench.run_within(take_away, 2 * SLACK);
    for id in waiting {
        let outcome = calls.end(id);
        assert_eq!(outcome.error, "ENODEV", "{outcome:?}");
        assert!(outcome.took < FAR_TIMEOUT, "{outcome:?}");
    }
    bench.wait_until_unpinned();
    for call in [format!("write {address} 100"), "version".into(), "info".into()] {
        calls.expect(0, &call, "ENODEV");
    }
    calls.expect(1, "open", "ENOENT");

    bench.device.behave();
    bench.run(bring_back);
    bench.run("until [ -e /dev/vram0 ]; do sleep 0.1; done");
    calls.expect(0, &format!("write {address} 100"), "ENODEV");
    bench.assert_works();
    assert!(!bench.vm.run("rmmod virtio_vram", SHORT).unwrap().is_success(), "a file is open");
    calls.expect(0, "close", "OK");
    bench.assert_works();
    calls.kill();
}

#[test]
fn device_unbound_or_removed_with_transfers_in_flight_ends_them() {
    let bench = bench("6.12");
    bench.set_timeout(Duration::from_secs(60));
    let driver = "/sys/bus/virtio/drivers/virtio_vram";
    let device = bench.run(&format!("cd {driver}; echo virtio*"));
    let slot = bench.run(&format!("readlink -f {driver}/{device}/.."));
    let slot = slot.strip_suffix("/..").unwrap_or(&slot).to_string();

    assert_removal_is_survived(
        &bench,
        &format!("echo {device} >{driver}/unbind"),
        &format!("echo {device} >{driver}/bind"),
    );
    assert_removal_is_survived(&bench, &format!("echo 1 >{slot}/remove"), "echo 1 >/sys/bus/pci/rescan");
    bench.finish();
}
