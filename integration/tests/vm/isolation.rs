//! What one guest, or one process of a guest, can do to another: nothing.

use vram_integration::{Lab, RIG_SLICE, RigConfig, StepOutcome, VhostUserDevice, Vm, Vramd, VramdConfig};
use vram_integration::{guest_program, guest_with_driver};

use crate::{SHORT, lab, rig};

fn guest_on(lab: &Lab, daemon: &Vramd, slice: &str) -> Vm {
    let soak = guest_program(lab, "integration/guest/vram_soak.c").unwrap();
    let builder = guest_with_driver(lab, "6.12").unwrap().file(soak, "/usr/bin/vram_soak");
    builder.vhost_user(VhostUserDevice::vram(daemon.socket(slice), 3)).start().unwrap()
}

/// Holds random bytes on the device and returns their address.
fn hold_bytes(vm: &Vm) -> String {
    vm.run_ok("head -c 3000000 /dev/urandom >/tmp/mine", SHORT).unwrap();
    let put = vm.vram("put /tmp/mine --name mine", SHORT).unwrap();
    put["address"].as_str().unwrap().to_string()
}

/// Tries all there is to try with an address of someone else's.
fn assert_out_of_reach(vm: &Vm, foreign: &str) {
    let last_byte = format!("0x{:x}", u64::from_str_radix(&foreign[2..], 16).unwrap() + 2_999_999);
    let steps = [
        "alloc 64KiB".to_string(),
        format!("read {foreign} 16"),
        format!("read {last_byte} 1"),
        format!("write {foreign} 00ff00ff"),
        format!("copy @0 {foreign} 4096"),
        format!("copy {foreign} @0 4096"),
        format!("fill {foreign} 4096 0"),
        format!("query {foreign}"),
        format!("free {foreign}"),
        "read @0 16".to_string(),
    ];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();

    let outcomes = vm.raw_steps(&steps, SHORT).unwrap();

    let (foreign_steps, own) = (&outcomes[1..outcomes.len() - 1], outcomes.last().unwrap());
    for (step, outcome) in steps[1..].iter().zip(foreign_steps) {
        assert!(outcome.is_errno("ENXIO"), "{step}: {outcome:?}");
    }
    assert_eq!(*own, StepOutcome::Ok("0".repeat(32)), "what was copied from there");
}

#[test]
fn guests_of_two_slices_cannot_reach_each_other() {
    let lab = lab();
    let config = VramdConfig::new("sim:2x128MiB", &["one=128MiB", "two=128MiB"]);
    let _seats = lab.seats(2).unwrap();
    let daemon = Vramd::start(config).unwrap();
    let (one, two) = (guest_on(&lab, &daemon, "one"), guest_on(&lab, &daemon, "two"));
    let (address_one, address_two) = (hold_bytes(&one), hold_bytes(&two));

    assert_out_of_reach(&two, &address_one);
    assert_out_of_reach(&one, &address_two);

    for (vm, slice) in [(&one, "one"), (&two, "two")] {
        vm.vram("verify mine --file /tmp/mine", SHORT).unwrap();
        let slice = daemon.slice(slice).unwrap();
        assert_eq!((&slice["allocations"], &slice["state"]), (&1.into(), &"in_use".into()), "{slice:#}");
    }
    // One guest's end is nothing to the other.
    one.finish().unwrap();
    daemon.wait_until_empty("one", SHORT).unwrap();
    two.vram("verify mine --file /tmp/mine", SHORT).unwrap();
    two.finish().unwrap();
    daemon.finish().unwrap();
}

#[test]
fn processes_of_one_guest_cannot_reach_each_other() {
    let rig = rig(RigConfig::default());
    let address = hold_bytes(&rig.vm);

    assert_out_of_reach(&rig.vm, &address);

    rig.vm.vram("verify mine --file /tmp/mine", SHORT).unwrap();
    rig.finish().unwrap();
}

/// How many of the bytes of a new allocation are not zero, as the guest prints it.
fn count_nonzero_bytes(vm: &Vm, mib: u64) -> String {
    vm.run_ok(&format!("vram_soak zeros {mib}"), SHORT).unwrap()
}

/// The pool is no larger than one allocation, and its fresh memory is full of rubbish: whoever allocates gets just what
/// the one before had.
#[test]
fn freed_memory_comes_back_as_zeros_to_the_same_guest_and_to_another() {
    const MIB: u64 = 32;
    let lab = lab();
    let mut config = VramdConfig::new(&format!("sim:1x{MIB}MiB,fresh=dirty"), &["one=1GiB", "two=1GiB"]);
    config.shard = "4MiB".into();
    let _seats = lab.seats(2).unwrap();
    let daemon = Vramd::start(config).unwrap();
    let (one, two) = (guest_on(&lab, &daemon, "one"), guest_on(&lab, &daemon, "two"));
    let soil = [&format!("alloc {MIB}MiB") as &str, &format!("fill @0 {MIB}MiB 0xa5"), "read @0+1MiB 2"];

    assert_eq!(count_nonzero_bytes(&one, MIB), "0", "memory nobody had");
    let soiled = one.raw_steps(&soil, SHORT).unwrap();
    assert_eq!(soiled.last().unwrap().result(), Some("a5a5"), "{soiled:?}");
    daemon.wait_until_empty("one", SHORT).unwrap();
    assert_eq!(count_nonzero_bytes(&one, MIB), "0", "memory the same guest had");
    one.raw_steps(&soil, SHORT).unwrap();
    daemon.wait_until_empty("one", SHORT).unwrap();
    assert_eq!(count_nonzero_bytes(&two, MIB), "0", "memory the other guest had");

    one.finish().unwrap();
    two.finish().unwrap();
    daemon.finish().unwrap();
}

#[test]
fn guest_gets_no_more_than_its_limit_and_no_more_than_there_is() {
    let lab = lab();
    let config = VramdConfig::new("sim:2x64MiB", &["small=64MiB", "large=1GiB,guarantee=32MiB"]);
    let _seats = lab.seats(2).unwrap();
    let daemon = Vramd::start(config).unwrap();
    let (small, large) = (guest_on(&lab, &daemon, "small"), guest_on(&lab, &daemon, "large"));

    let outcomes = small.raw_steps(&["alloc 48MiB", "alloc 48MiB", "free @0", "alloc 64MiB"], SHORT).unwrap();
    assert!(outcomes[1].is_errno("EDQUOT"), "{outcomes:?}");
    assert!(outcomes[3].result().is_some(), "{outcomes:?}");
    daemon.wait_until_empty("small", SHORT).unwrap();

    let outcomes =
        large.raw_steps(&["alloc 128MiB", "free @0", "alloc 112MiB", "alloc 32MiB"], SHORT).unwrap();
    assert!(outcomes[0].result().is_some(), "{outcomes:?}");
    assert!(outcomes[3].is_errno("ENOMEM"), "{outcomes:?}");
    daemon.wait_until_empty("large", SHORT).unwrap();

    small.finish().unwrap();
    large.finish().unwrap();
    daemon.finish().unwrap();
}

/// Memory that is promised to one slice is not given to another, however much that asks for.
#[test]
fn guarantee_of_an_idle_slice_is_kept() {
    let lab = lab();
    let config =
        VramdConfig::new("sim:2x64MiB", &[&format!("{RIG_SLICE}=1GiB"), "idle=64MiB,guarantee=64MiB"]);
    let _seats = lab.seats(1).unwrap();
    let daemon = Vramd::start(config).unwrap();
    let vm = guest_on(&lab, &daemon, RIG_SLICE);

    let outcomes = vm.raw_steps(&["alloc 128MiB", "alloc 64MiB", "alloc 16MiB"], SHORT).unwrap();

    assert!(outcomes[0].is_errno("ENOMEM"), "{outcomes:?}");
    assert!(outcomes[1].result().is_some(), "{outcomes:?}");
    assert!(outcomes[2].is_errno("ENOMEM"), "{outcomes:?}");
    vm.finish().unwrap();
    daemon.finish().unwrap();
}
