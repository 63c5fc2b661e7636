//! Threads of host lanes: none before there is something to do, none when the engine is gone. Alone in its process.

mod rig;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::{Gate, WAIT, host, job, outcome, rig};
use vram_guest_memory::HostBuffer;
use vram_transfer::{Flow, Part, Work};

/// How many threads of the process have a name that begins so.
fn threads(prefix: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[test]
fn threads_are_started_by_need_and_end_with_the_engine() {
    let rig = rig();
    rig.engine
        .run(Flow::Requests(0), Work::Read { from: rig.parts(0, 64), to: host(&[0; 64]) }, Vec::new())
        .unwrap();
    assert_eq!((threads("host-"), threads("cold-")), (0, 0));
    let memory = || Part::Host(HostBuffer::new(4096).unwrap().span());
    rig.engine
        .run(Flow::Requests(0), Work::Copy { to: vec![memory()], from: vec![memory()] }, Vec::new())
        .unwrap();
    assert_eq!((threads("host-"), threads("cold-")), (1, 0));
    // One tenant needs no more than may be under way of it.
    let gate = Arc::new(Gate::default());
    let mut ends = Vec::new();
    for _ in 0..10 {
        let (read, end) = job(Work::Copy { to: vec![memory()], from: vec![gate.part(4096)] });
        rig.engine.stream(Flow::Requests(0)).submit(read);
        ends.push(end);
    }
    gate.wait_asked(2);
    assert_eq!((threads("host-"), threads("cold-")), (1, 2));
    gate.open();
    for end in ends {
        assert!(outcome(&end).result.is_ok());
    }
    drop(rig);
    // The job's last act may have been the one that held the engine.
    let deadline = Instant::now() + WAIT;
    while threads("host-") + threads("cold-") > 0 {
        assert!(Instant::now() < deadline, "threads are left over");
        std::thread::sleep(Duration::from_millis(5));
    }
}
