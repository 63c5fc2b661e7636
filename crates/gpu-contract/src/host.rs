//! Registered host memory.

use vram_gpu::{GpuError, RegistrationHandle};
use vram_guest_memory::HostBuffer;

use crate::rig::{Rig, assert_bad_handle, assert_same, bytes_of, noise};

const LEN: usize = 1 << 20;

/// In and out of registered memory, and out of it after it is no longer.
pub fn registered_memory_copies_like_any_other(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let bytes = noise(10, LEN);
    let source = HostBuffer::new(LEN).unwrap().span();
    source.write_from(&bytes);
    let registration = backend.register_host(source.clone()).unwrap();
    backend.copy_in(lane.stream, ground.at(0), source.clone()).unwrap();
    backend.copy_in(lane.stream, ground.at(3), source.part(777, 999).unwrap()).unwrap();
    lane.finish().unwrap();
    let mut wanted = bytes.clone();
    wanted[3..3 + 999].copy_from_slice(&bytes[777..777 + 999]);
    backend.copy_out(lane.stream, source.clone(), ground.at(0)).unwrap();
    lane.finish().unwrap();
    assert_same(&bytes_of(&source), &wanted, "back in registered memory");
    backend.unregister_host(registration).unwrap();
    backend.copy_in(lane.stream, ground.at(0), source.part(1, 100).unwrap()).unwrap();
    assert_same(&lane.read(ground.at(0), 100), &wanted[1..101], "after unregistering");
}

/// One piece of memory, one registration; again after it ended.
pub fn register_twice_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let span = HostBuffer::new(LEN).unwrap().span();
    let registration = backend.register_host(span.clone()).unwrap();
    assert!(backend.register_host(span.clone()).is_err());
    assert!(backend.register_host(span.part(4096, 4096).unwrap()).is_err());
    assert!(backend.register_host(span.part(0, 0).unwrap()).is_err());
    backend.unregister_host(registration).unwrap();
    let registration = backend.register_host(span).unwrap();
    backend.unregister_host(registration).unwrap();
}

/// A copy is inside one registration or outside all.
pub fn copy_over_the_edge_of_a_registration_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let span = HostBuffer::new(LEN).unwrap().span();
    let half = LEN / 2;
    let first = backend.register_host(span.part(0, half).unwrap()).unwrap();
    let over = span.part(half - 8, 16).unwrap();
    for _ in 0..2 {
        let outcome = backend.copy_in(lane.stream, ground.at(0), over.clone());
        assert!(matches!(outcome, Err(GpuError::Driver { .. })), "{outcome:?}");
        let outcome = backend.copy_out(lane.stream, over.clone(), ground.at(0));
        assert!(matches!(outcome, Err(GpuError::Driver { .. })), "{outcome:?}");
    }
    let second = backend.register_host(span.part(half, half).unwrap()).unwrap();
    assert!(backend.copy_in(lane.stream, ground.at(0), over.clone()).is_err());
    backend.copy_in(lane.stream, ground.at(0), span.part(half - 16, 16).unwrap()).unwrap();
    backend.copy_in(lane.stream, ground.at(0), span.part(half, 16).unwrap()).unwrap();
    lane.finish().unwrap();
    backend.unregister_host(first).unwrap();
    backend.unregister_host(second).unwrap();
    backend.copy_in(lane.stream, ground.at(0), over).unwrap();
    lane.finish().unwrap();
}

/// Ended and made-up registrations are errors.
pub fn registration_that_is_not_alive_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let span = HostBuffer::new(LEN).unwrap().span();
    let registration = backend.register_host(span).unwrap();
    let number = registration.0;
    backend.unregister_host(registration).unwrap();
    for made_up in [number, 0, u64::MAX] {
        assert_bad_handle(backend.unregister_host(RegistrationHandle(made_up)));
    }
}
