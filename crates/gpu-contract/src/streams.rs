//! Order and independence.

use std::time::{Duration, Instant};

use vram_gpu::{DeviceRange, Pattern, StreamHandle};
use vram_guest_memory::HostBuffer;

use crate::rig::{PATIENCE, Rig, assert_bad_handle, assert_same, bytes_of, noise, span_of};

/// Each step uses what the step before made.
pub fn work_of_one_stream_runs_in_order(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let len = 64 << 10;
    let out = HostBuffer::new(len * 50).unwrap();
    for step in 0..50u8 {
        let here = DeviceRange { start: ground.at(0), len_bytes: len as u64 };
        backend.fill(lane.stream, here, Pattern::U8(step)).unwrap();
        backend.copy(lane.stream, ground.at(len as u64), ground.at(0), len as u64).unwrap();
        lane.send(ground.at(len as u64), &[0xff, step]).unwrap();
        let part = out.span().part(len * usize::from(step), len).unwrap();
        backend.copy_out(lane.stream, part, ground.at(len as u64)).unwrap();
    }
    lane.finish().unwrap();
    let found = bytes_of(&out.span());
    for (step, part) in found.chunks(len).take(50).enumerate() {
        let mut wanted = vec![step as u8; len];
        wanted[0] = 0xff;
        assert_same(part, &wanted, format_args!("step {step}"));
    }
}

/// The caller goes on while the work waits.
pub fn enqueue_returns_before_the_work_has_run(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    rig.backend().fill(lane.stream, ground.band, Pattern::U8(0)).unwrap();
    lane.finish().unwrap();
    let Some(paused) = rig.pause(rig.gpu()) else { return };
    let started = Instant::now();
    backend.copy_in(lane.stream, ground.at(0), span_of(b"bytes")).unwrap();
    let target = span_of(b"-----");
    backend.copy_out(lane.stream, target.clone(), ground.at(0)).unwrap();
    let range = DeviceRange { start: ground.at(64), len_bytes: 64 };
    backend.fill(lane.stream, range, Pattern::U8(1)).unwrap();
    backend.copy(lane.stream, ground.at(128), ground.at(64), 64).unwrap();
    let event = lane.record();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(backend.query(event), Ok(false));
    assert_eq!(bytes_of(&target), b"-----");
    drop(paused);
    assert_eq!(backend.synchronize(event, PATIENCE), Ok(true));
    assert_eq!(bytes_of(&target), b"bytes");
    assert_eq!(lane.read(ground.at(128), 64), [1; 64]);
    backend.destroy_event(event).unwrap();
}

/// A stream that waits for an event of a stalled stream waits alone.
pub fn blocked_stream_holds_nobody_else(rig: &Rig) {
    let (stalled_gpu, gpu) = (rig.gpu(), rig.other_gpu());
    if stalled_gpu == gpu {
        return;
    }
    let backend = rig.backend();
    let ground = rig.ground(&[stalled_gpu, gpu]);
    let (stalled, waiting, free) = (rig.lane(stalled_gpu), rig.lane(gpu), rig.lane(gpu));
    let here = ground.at(rig.unit());
    let Some(paused) = rig.pause(stalled_gpu) else { return };
    stalled.send(ground.at(0), b"slow").unwrap();
    let slow = stalled.record();
    backend.wait_event(waiting.stream, slow).unwrap();
    waiting.send(here, b"after").unwrap();
    let after = waiting.record();
    free.write(here.checked_add(64).unwrap(), b"free");
    assert_eq!(free.read(here.checked_add(64).unwrap(), 4), b"free");
    assert_eq!(backend.query(slow), Ok(false));
    assert_eq!(backend.query(after), Ok(false));
    drop(paused);
    assert_eq!(backend.synchronize(after, PATIENCE), Ok(true));
    assert_eq!(backend.query(slow), Ok(true));
    assert_eq!(free.read(here, 5), b"after");
    backend.destroy_event(slow).unwrap();
    backend.destroy_event(after).unwrap();
}

/// Ping-pong between two streams, ordered by events alone.
pub fn streams_that_wait_for_events_run_in_that_order(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu(), rig.other_gpu()]);
    let lanes = [rig.lane(rig.gpu()), rig.lane(rig.other_gpu())];
    let places = [ground.at(0), ground.at(rig.unit())];
    let len_bytes = 256 << 10;
    let bytes = noise(8, len_bytes);
    lanes[0].send(places[0], &bytes).unwrap();
    let mut events = Vec::new();
    for turn in 0..20 {
        let (lane, from, to) = (&lanes[turn % 2], places[turn % 2], places[(turn + 1) % 2]);
        if let Some(last) = events.last() {
            backend.wait_event(lane.stream, *last).unwrap();
        }
        backend.copy(lane.stream, to, from, len_bytes as u64).unwrap();
        // Destroy what was there, so that a step too early shows.
        let wipe = DeviceRange { start: from, len_bytes: len_bytes as u64 };
        backend.fill(lane.stream, wipe, Pattern::U8(0)).unwrap();
        events.push(lane.record());
    }
    let last = *events.last().unwrap();
    assert_eq!(backend.synchronize(last, PATIENCE), Ok(true));
    assert_same(&lanes[0].read(places[0], len_bytes), &bytes, "after 20 turns");
    for event in events {
        backend.destroy_event(event).unwrap();
    }
}

/// The caller's buffer is gone before the copy runs.
pub fn span_is_held_until_the_copy_is_done(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let paused = rig.pause(rig.gpu());
    let len = 100_000;
    for seed in 0..8 {
        lane.send(ground.at(seed * len), &noise(seed, len as usize)).unwrap();
        // Whatever of ours would be unmapped with a dropped buffer is put to other use.
        drop(HostBuffer::new(len as usize).unwrap());
        let unread = HostBuffer::new(len as usize).unwrap();
        backend.copy_out(lane.stream, unread.span().part(0, len as usize).unwrap(), ground.at(0)).unwrap();
    }
    drop(paused);
    for seed in 0..8 {
        let found = lane.read(ground.at(seed * len), len as usize);
        assert_same(&found, &noise(seed, len as usize), format_args!("buffer {seed}"));
    }
}

/// Destroying comes after the work.
pub fn destroy_stream_finishes_what_is_enqueued(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let stream = backend.create_stream(rig.gpu()).unwrap();
    let paused = rig.pause(rig.gpu());
    let bytes = noise(9, 1 << 20);
    backend.copy_in(stream, ground.at(1), span_of(&bytes)).unwrap();
    let event = backend.record(stream).unwrap();
    backend.destroy_stream(stream).unwrap();
    drop(paused);
    assert_eq!(backend.synchronize(event, PATIENCE), Ok(true));
    backend.destroy_event(event).unwrap();
    assert_same(&lane.read(ground.at(1), bytes.len()), &bytes, "the last copy");
}

/// Ended and made-up streams are errors.
pub fn stream_that_is_not_alive_is_refused(rig: &Rig) {
    let backend = rig.backend();
    let ground = rig.ground(&[rig.gpu()]);
    let lane = rig.lane(rig.gpu());
    let event = lane.record();
    let ended = backend.create_stream(rig.gpu()).unwrap();
    backend.destroy_stream(ended).unwrap();
    for stream in [ended, StreamHandle(0), StreamHandle(u64::MAX), StreamHandle(event.0)] {
        if stream == lane.stream {
            continue;
        }
        assert_bad_handle(backend.copy_in(stream, ground.at(0), span_of(b"x")));
        assert_bad_handle(backend.copy_out(stream, span_of(b"x"), ground.at(0)));
        assert_bad_handle(backend.copy(stream, ground.at(0), ground.at(64), 8));
        assert_bad_handle(backend.fill(stream, ground.band, Pattern::U8(0)));
        assert_bad_handle(backend.record(stream));
        assert_bad_handle(backend.wait_event(stream, event));
        assert_bad_handle(backend.destroy_stream(stream));
    }
    backend.destroy_event(event).unwrap();
}

/// Everything from every thread.
pub fn many_threads_with_own_streams_do_not_disturb_each_other(rig: &Rig) {
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            scope.spawn(move || {
                let gpu = if thread % 2 == 0 { rig.gpu() } else { rig.other_gpu() };
                let lane = rig.lane(gpu);
                for round in 0..6 {
                    let ground = rig.ground(&[gpu]);
                    let bytes = noise(thread * 100 + round, 300_000 + thread as usize);
                    lane.send(ground.at(thread), &bytes).unwrap();
                    rig.backend()
                        .copy(lane.stream, ground.at(1 << 20), ground.at(thread), bytes.len() as u64)
                        .unwrap();
                    let found = lane.read(ground.at(1 << 20), bytes.len());
                    assert_same(&found, &bytes, format_args!("thread {thread} round {round}"));
                }
            });
        }
    });
}
