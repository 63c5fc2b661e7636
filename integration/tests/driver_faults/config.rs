//! Configuration spaces and beginnings of a session that the driver cannot work with.

use std::time::Duration;

use vram_integration::{Fault, GUEST_MODULE, Requests, When};
use vram_protocol::{ConfigSpace, Opcode, Status};

use crate::{Bench, REQUEST_QUEUES, SLACK};

/// Loads the driver, and returns what it had to say.
fn load(bench: &Bench) -> String {
    bench.run("dmesg -c >/dev/null");
    bench.run_within(&format!("insmod {GUEST_MODULE} timeout_ms=500"), 3 * SLACK);
    assert_eq!(bench.vm.kernel_complaints().unwrap(), Vec::<String>::new());
    bench.run("dmesg | grep virtio_vram | grep -v taint || true")
}

fn refused(bench: &Bench) -> String {
    let said = load(bench);
    bench.run("[ ! -e /dev/vram0 ]");
    bench.unload();
    said
}

#[test]
fn configuration_of_another_device_is_left_alone_and_nonsense_is_refused() {
    let bench = Bench::start("6.12", |vm, module| vm.unloaded_module(module));
    let good = ConfigSpace::new(REQUEST_QUEUES, 0);

    let foreign: [fn(&mut ConfigSpace); 2] =
        [|config| config.magic = 0x1111_1111, |config| config.abi_major = 2];
    for change in foreign {
        bench.device.change_config(change);
        assert_eq!(refused(&bench), "");
        bench.device.change_config(|config| *config = good);
    }
    let nonsense: [fn(&mut ConfigSpace); 3] = [
        |config| config.request_queues = 0,
        |config| config.max_segments = 0,
        |config| config.max_transfer_bytes = 4095,
    ];
    for change in nonsense {
        bench.device.change_config(change);
        let said = refused(&bench);
        assert!(said.contains("unusable configuration"), "{said}");
        bench.device.change_config(|config| *config = good);
    }

    // No session, for every reason there is. An answer in good time says so at once, silence after the timeout.
    for fault in [
        Fault::Silence,
        Fault::Status(Status::BadVersion.code()),
        Fault::Status(Status::NotReady.code()),
        Fault::UsedLength(39),
        Fault::UsedLength(40),
        Fault::Moved(63),
        Fault::WrongTag,
        Fault::UnknownChain,
        Fault::Late(Duration::from_secs(5)),
    ] {
        bench.device.arm(fault, Requests::Of(Opcode::Hello), When::Nth(1));
        let said = refused(&bench);
        assert!(said.contains("no session"), "{fault:?}: {said}");
    }

    let unusual: [fn(&mut ConfigSpace); 4] = [
        |config| config.request_queues = 1,
        |config| config.request_queues = 100,
        |config| config.max_segments = 1,
        |config| config.max_transfer_bytes = 4096,
    ];
    for change in unusual {
        bench.device.change_config(change);
        load(&bench);
        bench.assert_works();
        bench.unload();
        bench.device.change_config(|config| *config = good);
    }
    load(&bench);
    bench.assert_works();
    bench.finish();
}
