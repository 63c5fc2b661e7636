//! Marks in streams: reached, not yet, failed.

use std::time::{Duration, Instant};

use vram_gpu::{DeviceRange, EventHandle, GpuError, Pattern};

use crate::rig::{PATIENCE, Rig, assert_bad_handle};

/// Reached stays reached.
pub fn event_is_reached_once_the_work_before_it_ran(rig: &Rig) {
    let backend = rig.backend();
    let lane = rig.lane(rig.gpu());
    let empty = lane.record();
    assert_eq!(backend.synchronize(empty, PATIENCE), Ok(true));
    let ground = rig.ground(&[rig.gpu()]);
    lane.send(ground.at(0), b"work").unwrap();
    let event = lane.record();
    let started = Instant::now();
    while backend.query(event) == Ok(false) {
        assert!(started.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    for _ in 0..3 {
        assert_eq!(backend.query(event), Ok(true));
        assert_eq!(backend.synchronize(event, Duration::ZERO), Ok(true));
        assert_eq!(backend.synchronize(event, Duration::MAX), Ok(true));
    }
    backend.destroy_event(empty).unwrap();
    backend.destroy_event(event).unwrap();
}

/// A wait ends when its time is up, and not much later.
pub fn synchronize_gives_up_when_the_time_is_up(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let Some(paused) = rig.pause(rig.gpu()) else { return };
    lane.send(ground.at(0), b"held").unwrap();
    let event = lane.record();
    for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(60)] {
        let started = Instant::now();
        assert_eq!(backend.synchronize(event, timeout), Ok(false));
        assert!(started.elapsed() >= timeout);
        assert!(started.elapsed() < timeout + Duration::from_secs(10));
    }
    assert_eq!(backend.query(event), Ok(false));
    drop(paused);
    assert_eq!(backend.synchronize(event, PATIENCE), Ok(true));
    backend.destroy_event(event).unwrap();
}

/// The event after the failure says so, the one after that is clean.
pub fn failure_is_reported_by_one_event(rig: &Rig) {
    let Some(injection) = rig.injection() else { return };
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let before = lane.record();
    injection.fail_next_copy();
    backend.fill(lane.stream, DeviceRange { start: ground.at(0), len_bytes: 4096 }, Pattern::U8(1)).unwrap();
    lane.send(ground.at(8192), b"goes on").unwrap();
    let covering = lane.record();
    let after = lane.record();
    assert_eq!(backend.synchronize(before, PATIENCE), Ok(true));
    let outcome = backend.synchronize(covering, PATIENCE);
    assert!(matches!(&outcome, Err(GpuError::CopyFailed { gpu, .. }) if *gpu == rig.gpu()), "{outcome:?}");
    assert_eq!(backend.query(covering), outcome, "the event keeps saying so");
    assert_eq!(backend.synchronize(after, PATIENCE), Ok(true));
    assert_eq!(lane.read(ground.at(8192), 7), b"goes on");
    for event in [before, covering, after] {
        backend.destroy_event(event).unwrap();
    }
}

/// Forgetting an event undoes no wait for it.
pub fn destroyed_event_still_holds_who_waits_for_it(rig: &Rig) {
    let (gpu, other) = (rig.gpu(), rig.other_gpu());
    if gpu == other {
        return;
    }
    let backend = rig.backend();
    let ground = rig.ground(&[gpu, other]);
    let (lane, waiting) = (rig.lane(gpu), rig.lane(other));
    let Some(paused) = rig.pause(gpu) else { return };
    lane.send(ground.at(0), b"held").unwrap();
    let event = lane.record();
    backend.wait_event(waiting.stream, event).unwrap();
    backend.destroy_event(event).unwrap();
    let after = waiting.record();
    assert_eq!(backend.synchronize(after, Duration::from_millis(50)), Ok(false));
    drop(paused);
    assert_eq!(backend.synchronize(after, PATIENCE), Ok(true));
    backend.destroy_event(after).unwrap();
}

/// Forgotten and made-up events are errors.
pub fn event_that_is_not_alive_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let lane = rig.lane(rig.gpu());
    let forgotten = lane.record();
    backend.destroy_event(forgotten).unwrap();
    for event in [forgotten, EventHandle(0), EventHandle(u64::MAX), EventHandle(lane.stream.0)] {
        assert_bad_handle(backend.query(event));
        assert_bad_handle(backend.synchronize(event, Duration::ZERO));
        assert_bad_handle(backend.wait_event(lane.stream, event));
        assert_bad_handle(backend.destroy_event(event));
    }
}
