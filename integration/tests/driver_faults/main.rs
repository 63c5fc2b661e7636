//! The guest's driver and a device that does wrong: a [`FaultyDevice`] in this process, QEMU, a stock guest kernel with
//! our module, and a program in the guest that makes the calls it is told to make.
//!
//! Every test ends with the driver unloaded, no user memory pinned, and the guest's kernel asked for complaints.

mod answers;
mod calls;
mod config;
mod session;
mod silence;
mod unbind;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vram_integration::{
    FaultyDevice, GUEST_MODULE, Lab, Seats, VhostUserDevice, Vm, VmBuilder, guest_driver, guest_program,
    wait_until,
};

use calls::Calls;

/// For what takes milliseconds unless something is broken, or the machine is very busy.
const SHORT: Duration = Duration::from_secs(60);
/// A time the driver waits for an answer that is longer than anything here takes.
const FAR_TIMEOUT: Duration = Duration::from_secs(10);
/// What the guest may take longer than the driver's clock says: it is emulated, on a busy machine.
const SLACK: Duration = Duration::from_millis(1500);
const REQUEST_QUEUES: u16 = 2;
const MIB: u64 = 1 << 20;
/// At least three requests; more where the guest's memory lies in pieces.
const LENGTH: u64 = 9 * MIB;

/// A guest with a faulty device.
struct Bench {
    vm: Vm,
    device: FaultyDevice,
    _seats: Seats,
}

/// A guest with the driver loaded.
fn bench(kernel_series: &str) -> Bench {
    Bench::start(kernel_series, |vm, module| vm.module(module))
}

impl Bench {
    fn start(kernel_series: &str, add: impl FnOnce(VmBuilder, PathBuf) -> VmBuilder) -> Bench {
        let lab = Lab::open().unwrap();
        // What has to be built is built before a seat is taken.
        let module = guest_driver(&lab, &lab.kernel(kernel_series).unwrap()).unwrap().path;
        let program = guest_program(&lab, "guest-driver-shim/linux/tests/vram_calls.c").unwrap();
        let seats = lab.seats(1).unwrap();
        let device = FaultyDevice::start(REQUEST_QUEUES).unwrap();
        let vm = VmBuilder::new(&lab)
            .kernel(kernel_series)
            .vcpus(2)
            .file(program, calls::PROGRAM)
            // Then the unloading of the module finds messages that were not freed.
            .kernel_arg("slab_nomerge")
            .vhost_user(VhostUserDevice::vram(device.socket(), u32::from(device.queues())));
        let vm = add(vm, module).start().unwrap();
        Bench { vm, device, _seats: seats }
    }

    /// A process in the guest, to make calls.
    fn calls(&self, name: &str) -> Calls<'_> {
        Calls::start(&self.vm, name)
    }

    fn run(&self, script: &str) -> String {
        self.vm.run_ok(script, SHORT).unwrap()
    }

    /// Runs a script that has to be quick.
    fn run_within(&self, script: &str, limit: Duration) {
        let begun = Instant::now();
        self.run(script);
        assert!(begun.elapsed() < limit, "`{script}` took {:?}", begun.elapsed());
    }

    /// How long the driver waits for a silent device.
    fn set_timeout(&self, timeout: Duration) {
        self.run(&format!("echo {} >/sys/module/virtio_vram/parameters/timeout_ms", timeout.as_millis()));
    }

    fn unload(&self) {
        self.run_within("rmmod virtio_vram", 2 * SLACK);
    }

    fn load(&self) {
        self.run(&format!("insmod {GUEST_MODULE}"));
    }

    /// Unbinds the driver, which resets the device, and binds it again.
    fn rebind(&self) {
        self.run("cd /sys/bus/virtio/drivers/virtio_vram; d=$(echo virtio*); echo $d >unbind; echo $d >bind");
    }

    /// Waits until the device has left this many more requests than `before` unanswered.
    fn wait_for_unanswered(&self, before: u64, count: u64) {
        let come = || Ok(self.device.unanswered() >= before + count);
        wait_until("requests the device does not answer", SHORT, come).unwrap();
    }

    fn wait_for_contexts(&self, count: usize) {
        let as_many = || Ok(self.device.contexts() == count);
        let waited = wait_until(&format!("{count} contexts to be open"), SHORT, as_many);
        waited.unwrap_or_else(|error| panic!("{error:#}: {} are", self.device.contexts()));
    }

    /// Pages of user memory that the guest's kernel has pinned.
    fn pinned(&self) -> i64 {
        // The processors' own counts are added up first.
        let count = "echo 1 >/proc/sys/vm/stat_refresh; sed -n 's/^nr_foll_pin_[a-z]* //p' /proc/vmstat";
        let counters: Vec<i64> = self.run(count).lines().map(|line| line.parse().unwrap()).collect();
        let [acquired, released] = counters[..] else { panic!("the kernel does not count pins") };
        acquired - released
    }

    fn wait_until_unpinned(&self) {
        wait_until("pinned memory to be released", SHORT, || Ok(self.pinned() == 0)).unwrap();
    }

    /// A new process uses the device as if nothing had been, and leaves nothing.
    fn assert_works(&self) {
        let (contexts, allocations) = (self.device.contexts(), self.device.allocations());
        let mut calls = self.calls("works");
        calls.expect(0, "open", "OK");
        let address = calls.alloc(0, LENGTH);
        calls.expect(0, &format!("write {address} {LENGTH}"), "OK");
        let read = calls.expect(0, &format!("read {address} {LENGTH}"), "OK");
        assert_eq!((read.moved, read.same), (LENGTH, LENGTH));
        calls.kill();
        self.wait_for_contexts(contexts);
        assert_eq!(self.device.allocations(), allocations);
    }

    /// Unloads the driver and ends all; nobody may have the device open.
    fn finish(self) {
        self.wait_until_unpinned();
        self.unload();
        assert_eq!(self.vm.kernel_complaints().unwrap(), Vec::<String>::new());
        self.vm.finish().unwrap();
        self.device.finish().unwrap();
    }
}
