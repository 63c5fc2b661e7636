//! Malformed chains and broken rings, down to single descriptors.

use std::time::Duration;

use anyhow::Result;
use vram_protocol::{Header, Range, Request, Status};
use vram_testkit::{Descriptor, Driver, VmSpec};
use vram_tests::TestDaemon;

const MIB: u64 = 1 << 20;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const WAIT: Duration = Duration::from_secs(10);

struct Rig {
    daemon: TestDaemon,
    driver: Driver,
    context: u32,
    base: u64,
    /// Guest addresses of a request of 64 bytes, a response and 8 KiB of data.
    request: u64,
    response: u64,
    data: u64,
}

impl Rig {
    fn start() -> Result<Self> {
        let daemon = TestDaemon::start("2x16MiB", &[("a", 16 * MIB, 0), ("b", 8 * MIB, 0)])?;
        let mut driver = daemon.driver("a")?;
        let context = driver.open()?;
        let base = driver.must_alloc(context, MIB)?;
        let ram = &driver.vm.ram;
        let (request, response, data) =
            (ram.take(0, 4096, 64)?, ram.take(0, 4096, 64)?, ram.take(0, 8192, 64)?);
        Ok(Self { daemon, driver, context, base, request, response, data })
    }

    /// Puts a WRITE of so many bytes into the request area.
    fn write_request(&self, length: u64, tag: u64) {
        let request = Request::Write(Range { address: self.base, length });
        let bytes = request.encode(Header { tag, context: self.context, stream: 0 });
        self.driver.vm.ram.write(self.request, &bytes);
        self.driver.vm.ram.write(self.response, &[0xee; 64]);
    }

    /// Publishes a chain of hand-made descriptors; returns (used length, status, tag).
    fn run(&mut self, descriptors: &[Descriptor]) -> Result<(u32, Option<u32>, u64)> {
        let ring = &mut self.driver.vm.rings[2];
        let head = ring.reserve()?;
        // The chain lies in the table from the head on; tests use few and the head descriptors are handed out low.
        for (i, descriptor) in descriptors.iter().enumerate() {
            let mut descriptor = *descriptor;
            if descriptor.flags & NEXT != 0 && descriptor.next == 0 {
                descriptor.next = head + i as u16 + 1;
            }
            ring.write_descriptor(head + i as u16, descriptor);
        }
        ring.publish(head);
        ring.kick();
        let used = ring.wait(WAIT)?;
        assert_eq!(used.head, head);
        let response = self.driver.vm.ram.read(self.response, 40);
        let status = (used.written > 0).then(|| u32::from_le_bytes(response[0..4].try_into().unwrap()));
        Ok((used.written, status, u64::from_le_bytes(response[8..16].try_into().unwrap())))
    }

    /// A good request still works.
    fn expect_alive(&mut self) -> Result<()> {
        let answer = self.driver.write(self.context, self.base, b"still here")?;
        assert_eq!(answer.status(), Status::Ok);
        let back = self.driver.read(self.context, self.base, 10)?;
        assert_eq!(back.payload, b"still here");
        Ok(())
    }
}

fn d(address: u64, len: u32, flags: u16) -> Descriptor {
    Descriptor { address, len, flags, next: 0 }
}

const BAD_CHAIN: Option<u32> = Some(1);
const BAD_LENGTH: Option<u32> = Some(9);
const OK: Option<u32> = Some(0);

#[test]
fn malformed_chains_are_answered_and_the_queue_goes_on() -> Result<()> {
    let mut rig = Rig::start()?;
    let (request, response, data) = (rig.request, rig.response, rig.data);
    let nowhere = 0xdead_0000_0000;
    let cases: Vec<(&str, Vec<Descriptor>, Option<u32>)> = vec![
        ("good", vec![d(request, 64, NEXT), d(data, 16, NEXT), d(response, 40, WRITE)], OK),
        (
            "good, one byte at a time",
            {
                let mut chain: Vec<_> = (0..64).map(|i| d(request + i, 1, NEXT)).collect();
                chain.push(d(data, 16, NEXT));
                chain.push(d(response, 39, NEXT | WRITE));
                chain.push(d(response + 39, 1, WRITE));
                chain
            },
            OK,
        ),
        (
            "no room for a response",
            vec![d(request, 64, NEXT), d(data, 16, NEXT), d(response, 39, WRITE)],
            None,
        ),
        ("nothing writable", vec![d(request, 64, NEXT), d(data, 16, 0)], None),
        ("nothing readable", vec![d(response, 40, WRITE)], BAD_CHAIN),
        ("request short by one", vec![d(request, 63, NEXT), d(response, 40, WRITE)], BAD_CHAIN),
        ("no data", vec![d(request, 64, NEXT), d(response, 40, WRITE)], BAD_LENGTH),
        (
            "data short by one",
            vec![d(request, 64, NEXT), d(data, 15, NEXT), d(response, 40, WRITE)],
            BAD_LENGTH,
        ),
        (
            "data long by one",
            vec![d(request, 64, NEXT), d(data, 17, NEXT), d(response, 40, WRITE)],
            BAD_LENGTH,
        ),
        (
            "readable after writable",
            vec![d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(data, 16, 0)],
            BAD_CHAIN,
        ),
        ("zero bytes", vec![d(request, 64, NEXT), d(data, 0, NEXT), d(response, 40, WRITE)], None),
        (
            "zero bytes after the response",
            vec![d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(data, 0, WRITE)],
            BAD_CHAIN,
        ),
        ("data not memory", vec![d(request, 64, NEXT), d(nowhere, 16, NEXT), d(response, 40, WRITE)], None),
        ("response not memory", vec![d(request, 64, NEXT), d(data, 16, NEXT), d(nowhere, 40, WRITE)], None),
        ("data wraps", vec![d(request, 64, NEXT), d(u64::MAX - 3, 16, NEXT), d(response, 40, WRITE)], None),
        (
            "more not memory behind the response",
            vec![d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(nowhere, 4, WRITE)],
            BAD_CHAIN,
        ),
        (
            "next out of range",
            vec![d(request, 64, NEXT), Descriptor { next: 60_000, ..d(response, 40, NEXT | WRITE) }],
            BAD_CHAIN,
        ),
        (
            "indirect beside others",
            vec![d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(data, 32, INDIRECT)],
            BAD_CHAIN,
        ),
        ("indirect with next", vec![d(data, 32, INDIRECT | NEXT), d(response, 40, WRITE)], None),
        ("indirect of no entries", vec![d(data, 0, INDIRECT)], None),
        ("indirect of odd size", vec![d(data, 33, INDIRECT)], None),
        ("indirect not memory", vec![d(nowhere, 32, INDIRECT)], None),
    ];
    for (tag, (name, chain, expect)) in cases.into_iter().enumerate() {
        let tag = tag as u64 + 100;
        rig.write_request(16, tag);
        let (written, status, echoed) = rig.run(&chain)?;
        assert_eq!(status, expect, "{name}");
        match status {
            None => assert_eq!(written, 0, "{name}"),
            Some(_) => {
                assert_eq!(written, 40, "{name}");
                let whole_request =
                    chain.iter().filter(|d| d.flags & WRITE == 0).map(|d| d.len).sum::<u32>() >= 64;
                assert_eq!(echoed, if whole_request { tag } else { 0 }, "{name}");
            }
        }
        rig.expect_alive()?;
    }
    Ok(())
}

#[test]
fn loops_end_as_malformed() -> Result<()> {
    let mut rig = Rig::start()?;
    let (request, response) = (rig.request, rig.response);
    rig.write_request(16, 7);
    let ring = &mut rig.driver.vm.rings[2];
    let head = ring.reserve()?;
    ring.write_descriptor(head, Descriptor { next: head + 1, ..d(request, 64, NEXT) });
    ring.write_descriptor(head + 1, Descriptor { next: head + 1, ..d(response, 40, NEXT | WRITE) });
    ring.publish(head);
    ring.kick();
    assert_eq!(ring.wait(WAIT)?.written, 40);
    assert_eq!(rig.driver.vm.ram.read(response, 4), [1, 0, 0, 0]);
    rig.expect_alive()
}

#[test]
fn indirect_chains_work_and_nested_ones_do_not() -> Result<()> {
    let mut rig = Rig::start()?;
    let table = rig.driver.vm.ram.take(0, 16 * 2048, 16)?;
    let (request, response, data) = (rig.request, rig.response, rig.data);
    let lay = |rig: &Rig, entries: &[Descriptor]| {
        for (i, entry) in entries.iter().enumerate() {
            let mut entry = *entry;
            if entry.flags & NEXT != 0 {
                entry.next = i as u16 + 1;
            }
            rig.driver.vm.ram.write(table + i as u64 * 16, &entry.bytes());
        }
    };
    // As many data segments as allowed, scattered so that none merges: every other 4 bytes.
    let mut entries = vec![d(request, 64, NEXT)];
    for i in 0..1024u64 {
        entries.push(d(data + i * 8, 4, NEXT));
    }
    entries.push(d(response, 40, WRITE));
    rig.write_request(4096, 8);
    lay(&rig, &entries);
    let size = entries.len() as u32 * 16;
    assert_eq!(rig.run(&[d(table, size, INDIRECT)])?, (40, OK, 8));
    // One more is too long.
    entries.insert(1, d(data + 8188, 1, NEXT));
    rig.write_request(4097, 9);
    lay(&rig, &entries);
    assert_eq!(rig.run(&[d(table, size + 16, INDIRECT)])?.1, None);
    // The table is cut off before its end.
    rig.write_request(16, 10);
    lay(&rig, &[d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(data, 4, WRITE)]);
    assert_eq!(rig.run(&[d(table, 32, INDIRECT)])?.1, BAD_CHAIN);
    // Indirect inside indirect.
    lay(&rig, &[d(request, 64, NEXT), d(response, 40, NEXT | WRITE), d(data, 32, INDIRECT)]);
    assert_eq!(rig.run(&[d(table, 48, INDIRECT)])?.1, BAD_CHAIN);
    rig.expect_alive()
}

#[test]
fn headers_with_one_thing_wrong_get_its_status_and_change_nothing() -> Result<()> {
    let mut rig = Rig::start()?;
    let good = Request::Read(Range { address: rig.base, length: 8 });
    let good = good.encode(Header { tag: 77, context: rig.context, stream: 0 });
    assert_eq!(rig.driver.write(rig.context, rig.base, &[9; 8])?.status(), Status::Ok);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good;
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let cases: Vec<(&str, [u8; 64], Status)> = vec![
        ("opcode 0", with(0, &[0, 0]), Status::Unsupported),
        ("opcode unknown", with(0, &[0xff, 0x7f]), Status::Unsupported),
        ("INFO here", with(0, &[2, 0]), Status::WrongQueue),
        ("flags", with(2, &[1, 0]), Status::BadRequest),
        ("high flag", with(2, &[0, 0x80]), Status::BadRequest),
        ("reserved", with(20, &[1]), Status::BadRequest),
        ("reserved end", with(23, &[0x80]), Status::BadRequest),
        ("body reserved first", with(40, &[1]), Status::BadRequest),
        ("body reserved last", with(63, &[1]), Status::BadRequest),
        ("stream", with(16, &1024u32.to_le_bytes()), Status::BadStream),
        ("stream max", with(16, &u32::MAX.to_le_bytes()), Status::BadStream),
        ("length zero", with(32, &0u64.to_le_bytes()), Status::BadLength),
        ("length max", with(32, &u64::MAX.to_le_bytes()), Status::BadAddress),
        ("length above room", with(32, &9u64.to_le_bytes()), Status::BadLength),
        ("length below room", with(32, &7u64.to_le_bytes()), Status::BadLength),
        ("context", with(4, &u32::MAX.to_le_bytes()), Status::NoContext),
        ("context zero", with(4, &0u32.to_le_bytes()), Status::NoContext),
        ("address zero", with(24, &0u64.to_le_bytes()), Status::BadAddress),
        ("address wraps", with(24, &u64::MAX.to_le_bytes()), Status::BadAddress),
    ];
    for (name, bytes, status) in cases {
        let answer = rig.driver.send_bytes(2, &bytes, &[], 8)?.unwrap();
        assert_eq!(answer.status(), status, "{name}");
        assert_eq!((answer.response.tag, answer.response.moved), (77, 0), "{name}");
    }
    let read_on_control = rig.driver.send_bytes(0, &good, &[], 8)?.unwrap();
    assert_eq!(read_on_control.status(), Status::WrongQueue);
    let answer = rig.driver.send_bytes(2, &good, &[], 8)?.unwrap();
    assert_eq!((answer.status(), answer.payload), (Status::Ok, vec![9; 8]));
    Ok(())
}

/// Breaks a ring of slice a, then sees that a is cut off, its memory is back, b never noticed, and a can come back.
fn broken_ring_ends_its_session(break_it: impl FnOnce(&mut Rig)) -> Result<()> {
    let mut rig = Rig::start()?;
    let mut neighbour = rig.daemon.driver("b")?;
    let context = neighbour.open()?;
    let base = neighbour.must_alloc(context, MIB)?;
    neighbour.write(context, base, b"neighbour")?;
    break_it(&mut rig);
    // Slice b holds one shard; that of a comes back without a having said goodbye.
    rig.daemon.expect_used(2 * MIB)?;
    assert!(rig.driver.vm.config(0, 4).is_err(), "the frontend is still connected");
    assert_eq!(neighbour.read(context, base, 9)?.payload, b"neighbour");
    drop(rig.driver);
    let mut again = rig.daemon.driver("a")?;
    let context = again.open()?;
    let base = again.must_alloc(context, MIB)?;
    assert_eq!(again.read(context, base, 16)?.payload, [0; 16]);
    Ok(())
}

#[test]
fn ring_available_index_too_far_ahead_ends_the_session() -> Result<()> {
    broken_ring_ends_its_session(|rig| {
        let ring = &rig.driver.vm.rings[2];
        ring.set_available_index(ring.next_available().wrapping_add(257));
        ring.kick();
    })
}

#[test]
fn ring_head_out_of_range_ends_the_session() -> Result<()> {
    broken_ring_ends_its_session(|rig| {
        let ring = &mut rig.driver.vm.rings[0];
        ring.publish(256);
        ring.kick();
    })
}

#[test]
fn ring_same_head_twice_in_flight_ends_the_session() -> Result<()> {
    broken_ring_ends_its_session(|rig| {
        rig.daemon.faults.delay_copies(Duration::from_millis(300));
        rig.write_request(16, 1);
        let (request, data, response) = (rig.request, rig.data, rig.response);
        let ring = &mut rig.driver.vm.rings[2];
        let head = ring.build(&[(request, 64, false), (data, 16, false), (response, 40, true)]).unwrap();
        ring.publish(head);
        ring.publish(head);
        ring.kick();
    })
}

#[test]
fn memory_truncated_by_the_frontend_ends_that_session_only() -> Result<()> {
    broken_ring_ends_its_session(|rig| {
        let ram = std::sync::Arc::clone(&rig.driver.vm.ram);
        let last = ram.region_count() - 1;
        let lost = ram.take(last, 4096, 4096).unwrap();
        rig.write_request(4096, 1);
        let (request, response) = (rig.request, rig.response);
        let ring = &mut rig.driver.vm.rings[2];
        let head = ring.build(&[(request, 64, false), (lost, 4096, false), (response, 40, true)]).unwrap();
        ram.file(last).set_len(0).unwrap();
        ring.publish(head);
        ring.kick();
    })
}

#[test]
fn ring_outside_memory_is_refused_at_start() -> Result<()> {
    let daemon = TestDaemon::start("1x16MiB", &[("a", 8 * MIB, 0)])?;
    let mut driver = Driver::connect(&daemon.socket("a"), &VmSpec::default())?;
    driver.vm.stop_ring(2)?;
    driver.vm.rings[2].used = 0xffff_0000_0000;
    assert!(driver.vm.resume_ring(2, 0).is_err());
    drop(driver);
    daemon.driver("a")?;
    Ok(())
}
