//! Frontends that come, go, pause, move memory and misbehave; several slices in one daemon.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vram_control_api::v1::NewSlice;
use vram_control_server::{ControlState, Refusal};
use vram_protocol::{Header, Range, Request, Status};
use vram_testkit::{Driver, FakeVm, GuestRam, RamRegion, VmSpec};
use vram_tests::TestDaemon;

const MIB: u64 = 1 << 20;

fn two_slices() -> Result<TestDaemon> {
    TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 16 * MIB, 0)])
}

#[test]
fn disconnect_frees_everything_and_the_next_frontend_starts_clean() -> Result<()> {
    let daemon = two_slices()?;
    for round in 0..5 {
        let mut driver = daemon.driver("a")?;
        let context = driver.open()?;
        let base = driver.must_alloc(context, 14 * MIB)?;
        assert_eq!(driver.read(context, base, 4096)?.payload, vec![0; 4096], "round {round}");
        driver.write(context, base, &vec![0x77; 4096])?;
        drop(driver);
    }
    daemon.expect_all_memory_back()?;
    // A closed connection leaves nothing behind in the backend either.
    let counts = daemon.sim.counts();
    assert_eq!((counts.mappings, counts.shards, counts.events), (0, 0, 0));
    Ok(())
}

#[test]
fn tenants_cannot_touch_each_others_addresses() -> Result<()> {
    let daemon = two_slices()?;
    let (mut a, mut b) = (daemon.driver("a")?, daemon.driver("b")?);
    let (ca, cb) = (a.open()?, b.open()?);
    let (base_a, base_b) = (a.must_alloc(ca, MIB)?, b.must_alloc(cb, MIB)?);
    a.write(ca, base_a, b"secret of a")?;
    assert_eq!(b.read(cb, base_a, 11)?.status(), Status::BadAddress);
    assert_eq!(b.write(cb, base_a, b"overwritten")?.status(), Status::BadAddress);
    assert_eq!(b.copy(cb, base_b, base_a, 11)?.status(), Status::BadAddress);
    assert_eq!(b.copy(cb, base_a, base_b, 11)?.status(), Status::BadAddress);
    assert_eq!(b.fill(cb, base_a, 11, 0, 1)?.status(), Status::BadAddress);
    assert_eq!(b.free(cb, base_a)?.status(), Status::BadAddress);
    assert_eq!(b.query(cb, base_a, 0, 64)?.status(), Status::BadAddress);
    // The other session's context numbers mean nothing here either.
    assert_eq!(b.read(ca + 1000, base_a, 11)?.status(), Status::NoContext);
    assert_eq!(a.read(ca, base_a, 11)?.payload, b"secret of a");
    Ok(())
}

#[test]
fn stopped_rings_keep_the_session_and_go_on_where_they_were() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    for round in 0..20u8 {
        driver.write(context, base, &[round; 64])?;
        let bases: Vec<u16> = (0..4).map(|index| driver.vm.stop_ring(index)).collect::<Result<_>>()?;
        assert_eq!(bases[2], driver.vm.rings[2].next_available());
        // What is made available while the ring is stopped is taken when it runs again.
        for (index, base) in bases.into_iter().enumerate() {
            driver.vm.resume_ring(index, base)?;
        }
        assert_eq!(driver.read(context, base, 64)?.payload, [round; 64]);
    }
    Ok(())
}

#[test]
fn stopping_a_ring_waits_for_requests_under_way() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    daemon.faults.delay_copies(Duration::from_millis(50));
    let ram = std::sync::Arc::clone(&driver.vm.ram);
    let (request, response, data) = (ram.take(0, 64, 64)?, ram.take(0, 4096, 64)?, ram.take(0, 64, 64)?);
    ram.write(data, &[0x5a; 64]);
    let write = Request::Write(Range { address: base, length: 64 });
    ram.write(request, &write.encode(Header { tag: 1, context, stream: 0 }));
    let ring = &mut driver.vm.rings[2];
    for i in 0..10 {
        let head = ring.build(&[(request, 64, false), (data, 64, false), (response + i * 64, 40, true)])?;
        ring.publish(head);
    }
    ring.kick();
    std::thread::sleep(Duration::from_millis(20));
    let base_index = driver.vm.stop_ring(2)?;
    // Every chain that was taken is in the used ring by now.
    let mut answered = 0;
    while driver.vm.rings[2].poll().is_some() {
        answered += 1;
    }
    assert_eq!(answered, base_index);
    driver.vm.resume_ring(2, base_index)?;
    driver.vm.rings[2].kick();
    while answered < 10 {
        driver.vm.rings[2].wait(Duration::from_secs(10))?;
        answered += 1;
    }
    Ok(())
}

#[test]
fn memory_slots_are_added_and_removed_while_running() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    let extra = GuestRam::new(&[RamRegion { start: 2 << 32, len_bytes: 4 * MIB }])?;
    let ram = std::sync::Arc::clone(&driver.vm.ram);
    let (request, response) = (ram.take(0, 64, 64)?, ram.take(0, 64, 64)?);
    let read = Request::Read(Range { address: base, length: 4096 });
    ram.write(request, &read.encode(Header { tag: 1, context, stream: 0 }));
    driver.write(context, base, &[0x21; 4096])?;
    let into_extra = |driver: &mut Driver| -> Result<u32> {
        let ring = &mut driver.vm.rings[2];
        let head = ring.build(&[(request, 64, false), (response, 40, true), (2 << 32, 4096, true)])?;
        ring.publish(head);
        ring.kick();
        ring.wait(Duration::from_secs(10))?;
        Ok(u32::from_le_bytes(ram.read(response, 4).try_into().unwrap()))
    };
    assert_eq!(into_extra(&mut driver)?, Status::BadChain.code());
    for _ in 0..10 {
        driver.vm.frontend.add_mem_region(&extra.info(0))?;
        assert_eq!(into_extra(&mut driver)?, Status::Ok.code());
        assert_eq!(extra.read(2 << 32, 4096), [0x21; 4096]);
        driver.vm.frontend.remove_mem_region(&extra.info(0))?;
        assert_eq!(into_extra(&mut driver)?, Status::BadChain.code());
    }
    assert!(driver.vm.frontend.get_max_mem_slots()? >= 32);
    Ok(())
}

#[test]
fn configuration_is_exact_at_every_offset_and_read_only() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    let whole = driver.vm.config(0, 64)?;
    assert_eq!(&whole[0..4], b"VRAM");
    assert_eq!(whole[8..10], 2u16.to_le_bytes());
    for offset in 0..64u32 {
        for size in 1..=64 - offset {
            assert_eq!(driver.vm.config(offset, size)?, whole[offset as usize..(offset + size) as usize]);
        }
    }
    assert_eq!(driver.vm.config(60, 196)?[4..], [0; 192]);
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
    driver.vm.frontend.set_config(0, flags, &[0; 8])?;
    assert_eq!(driver.vm.config(0, 64)?, whole);
    Ok(())
}

#[test]
fn frontends_that_talk_nonsense_are_cut_off_and_others_go_on() -> Result<()> {
    let daemon = two_slices()?;
    let mut neighbour = daemon.driver("b")?;
    let context = neighbour.open()?;
    let base = neighbour.must_alloc(context, MIB)?;
    let nonsense: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 12],
        &[0xff; 4096],
        // A header of an unknown request, of a request that is too large, and half a header.
        &[0xff, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f],
        &[1, 0, 0],
    ];
    for bytes in nonsense {
        let mut stream = UnixStream::connect(daemon.socket("a"))?;
        stream.write_all(bytes)?;
        drop(stream);
        assert_eq!(neighbour.write(context, base, b"fine")?.status(), Status::Ok);
    }
    let mut driver = daemon.driver("a")?;
    driver.open()?;
    Ok(())
}

#[test]
fn frontend_settings_out_of_range_are_refused() -> Result<()> {
    let daemon = two_slices()?;
    type Wrong = fn(&mut vhost::vhost_user::Frontend) -> bool;
    let wrong: [(&str, Wrong); 5] = [
        ("ring size 0", |f| f.set_vring_num(0, 0).is_err()),
        ("ring size 3", |f| f.set_vring_num(0, 3).is_err()),
        ("ring size 2048", |f| f.set_vring_num(0, 2048).is_err()),
        ("feature nobody offered", |f| f.set_features(1 << 34).is_err() || f.get_features().is_err()),
        ("enable a ring that is not there", |f| f.set_vring_enable(7, true).is_err()),
    ];
    for (name, attempt) in wrong {
        let mut frontend = FakeVm::handshake(&daemon.socket("a"), 8)?;
        assert!(attempt(&mut frontend), "{name} was accepted");
    }
    daemon.driver("a")?;
    Ok(())
}

#[test]
fn memory_table_with_bad_regions_is_refused() -> Result<()> {
    let daemon = two_slices()?;
    let ram = GuestRam::new(&[RamRegion { start: 0x10_0000, len_bytes: MIB }])?;
    let good = ram.info(0);
    let mut beyond_file = ram.info(0);
    beyond_file.memory_size = 2 * MIB;
    let mut overlapping = ram.info(0);
    overlapping.guest_phys_addr += 4096;
    for table in [vec![beyond_file], vec![good, overlapping]] {
        let frontend = FakeVm::handshake(&daemon.socket("a"), 4)?;
        assert!(frontend.set_mem_table(&table).is_err());
    }
    daemon.driver("a")?;
    Ok(())
}

#[test]
fn queues_fewer_than_offered_are_enough() -> Result<()> {
    let daemon = two_slices()?;
    let spec = VmSpec { queues: 3, queue_size: 16, ..VmSpec::default() };
    let mut driver = Driver::connect(&daemon.socket("a"), &spec)?;
    driver.hello(1)?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, 4 * MIB)?;
    driver.write(context, base, &[1; 100])?;
    assert_eq!(driver.read(context, base, 100)?.payload, [1; 100]);
    Ok(())
}

#[test]
fn connection_dropped_in_the_middle_of_copies_gives_everything_back() -> Result<()> {
    let daemon = two_slices()?;
    for _ in 0..5 {
        let mut driver = daemon.driver("a")?;
        let context = driver.open()?;
        let (to, from) = (driver.must_alloc(context, 7 * MIB)?, driver.must_alloc(context, 7 * MIB)?);
        daemon.faults.delay_copies(Duration::from_millis(20));
        let ram = std::sync::Arc::clone(&driver.vm.ram);
        let (request, response) = (ram.take(0, 4096, 64)?, ram.take(0, 4096, 64)?);
        let copy = Request::Copy(vram_protocol::Copy { destination: to, source: from, length: 7 * MIB });
        let ring = &mut driver.vm.rings[3];
        for i in 0..16u32 {
            let at = request + u64::from(i) * 64;
            ram.write(at, &copy.encode(Header { tag: 1, context, stream: i }));
            let head = ring.build(&[(at, 64, false), (response + u64::from(i) * 64, 40, true)])?;
            ring.publish(head);
        }
        ring.kick();
        std::thread::sleep(Duration::from_millis(5));
        drop(driver);
        daemon.expect_all_memory_back()?;
        daemon.faults.clear();
    }
    Ok(())
}

#[test]
fn gpus_that_cannot_reach_each_other_still_share_an_allocation() -> Result<()> {
    let daemon = TestDaemon::start("3x8MiB,links=sys,peers=none,fresh=dirty", &[("a", 24 * MIB, 0)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let (first, second) = (driver.must_alloc(context, 11 * MIB)?, driver.must_alloc(context, 11 * MIB)?);
    let data: Vec<u8> = (0..3 * MIB).map(|i| (i / 3) as u8).collect();
    driver.write(context, first + 7 * MIB, &data)?;
    assert_eq!(driver.copy(context, second + 5, first, 11 * MIB - 5)?.status(), Status::Ok);
    assert!(driver.read(context, second + 7 * MIB + 5, 3 * MIB)?.payload == data);
    Ok(())
}

#[test]
fn kick_descriptor_that_is_no_eventfd_is_refused() -> Result<()> {
    use std::io::{IoSlice, Read};
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let daemon = two_slices()?;
    let mut stream = UnixStream::connect(daemon.socket("a"))?;
    // SET_VRING_KICK of ring 0: request 12, version 1, eight bytes of payload.
    let mut message = Vec::new();
    message.extend(12u32.to_le_bytes());
    message.extend(1u32.to_le_bytes());
    message.extend(8u32.to_le_bytes());
    message.extend(0u64.to_le_bytes());
    let file = tempfile::tempfile()?;
    let descriptors = [file.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&message)], &rights, MsgFlags::empty(), None)?;
    assert_eq!(stream.read(&mut [0; 16])?, 0, "the frontend was not cut off");
    daemon.driver("a")?;
    Ok(())
}

#[test]
fn every_stream_of_many_contexts_can_be_used() -> Result<()> {
    let daemon = two_slices()?;
    let mut driver = daemon.driver("a")?;
    for _ in 0..3 {
        let context = driver.open()?;
        let base = driver.must_alloc(context, 4096)?;
        for stream in 0..1024u32 {
            let fill =
                vram_protocol::Fill { range: Range { address: base, length: 4 }, pattern: stream, width: 4 };
            assert_eq!(driver.send(context, stream, &Request::Fill(fill), &[], 0)?.status(), Status::Ok);
        }
        assert_eq!(driver.read(context, base, 4)?.payload, 1023u32.to_le_bytes());
    }
    Ok(())
}

#[test]
fn slice_removed_with_bytes_in_a_tier_leaves_none_to_the_next_of_its_name() -> Result<()> {
    let daemon = TestDaemon::start_with_tiers("1x8MiB,fresh=dirty", &[("a", 24 << 20, 0)], &["host:24MiB"])?;
    let state = daemon.daemon.state();
    let refused = |refusal: Refusal| anyhow::anyhow!("{refusal:?}");
    for _ in 0..3 {
        let mut driver = daemon.driver("a")?;
        let context = driver.open()?;
        let base = driver.must_alloc(context, 16 << 20)?;
        for piece in 0..16 {
            let address = base + (piece << 20);
            assert!(driver.read(context, address, 4096)?.payload.iter().all(|byte| *byte == 0));
            assert_eq!(driver.write(context, address, &[0xa5; 1 << 20])?.status(), Status::Ok);
        }
        assert!(state.slice("a").context("the slice")?.stored_bytes > 0, "all of it is on the GPU");
        drop(driver);

        let deadline = Instant::now() + Duration::from_secs(10);
        let removed = loop {
            match state.remove_slice("a") {
                Ok(slice) => break slice,
                Err(refusal) => ensure!(Instant::now() < deadline, "{refusal:?}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        daemon.expect_all_memory_back()?;
        assert_eq!(state.tiers().iter().map(|tier| tier.logical_bytes).sum::<u64>(), 0);

        let new = NewSlice {
            name: removed.name,
            limit_bytes: removed.limit_bytes,
            guarantee_bytes: None,
            placement: None,
            home_gpu: None,
            request_queues: Some(removed.request_queues),
            socket: None,
            group: None,
        };
        state.create_slice(new).map_err(refused)?;
    }
    Ok(())
}
