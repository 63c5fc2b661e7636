//! Rings at their edges: EVENT_IDX, indices that wrap, one entry and a thousand, rings that stop, move and start anew.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vram_protocol::{Fill, Header, Range, Request, Status};
use vram_testkit::{Descriptor, Driver, DriverRing, FakeVm, GuestRam, VmSpec};
use vram_tests::TestDaemon;

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(10);
/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC.
const WITH_EVENT_IDX: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28;

fn daemon() -> Result<TestDaemon> {
    TestDaemon::start("2x16MiB,fresh=dirty", &[("a", 16 * MIB, 0), ("b", 16 * MIB, 0)])
}

/// Starts a ring of this size in place of one that runs, with EVENT_IDX from now on.
fn restart_with_event_idx(driver: &mut Driver, index: usize, size: u16, base: u16) -> Result<()> {
    driver.vm.frontend.set_features(WITH_EVENT_IDX).context("SET_FEATURES")?;
    driver.vm.stop_ring(index)?;
    driver.vm.rings[index] = DriverRing::new(&Arc::clone(&driver.vm.ram), size)?;
    let ring = &driver.vm.rings[index];
    // Both indices start where the test wants them.
    ring.set_available_index(base);
    driver.vm.ram.store_u16(ring.used + 2, base);
    FakeVm::start_ring(&mut driver.vm.frontend, index, &driver.vm.rings[index], base)
}

/// The driver's side of EVENT_IDX over one ring whose chains are laid once, one for each slot.
struct EventRing {
    ram: Arc<GuestRam>,
    size: u16,
    available: u64,
    used: u64,
    next: u16,
    seen: u16,
    kicks: u64,
}

impl EventRing {
    fn publish(&mut self, head: u16) {
        let slot = u64::from(self.next % self.size);
        self.ram.write(self.available + 4 + slot * 2, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.ram.store_u16(self.available + 2, self.next);
    }

    /// Kicks by the rule of the specification, as Linux does.
    fn kick(&mut self, ring: &DriverRing, old: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let event = self.ram.load_u16(self.used + 4 + u64::from(self.size) * 8);
        if self.next.wrapping_sub(event).wrapping_sub(1) < self.next.wrapping_sub(old) {
            ring.kick();
            self.kicks += 1;
        }
    }

    /// Asks for an interrupt at the next used entry; how many there are already.
    fn ask(&self) -> u16 {
        self.ram.store_u16(self.available + 4 + u64::from(self.size) * 2, self.seen);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.ram.load_u16(self.used + 2).wrapping_sub(self.seen)
    }
}

/// Sends more requests than indices have numbers, kicks and interrupts by EVENT_IDX alone: a lost one stops the test.
fn run_past_the_wrap(size: u16, base: u16, requests: u64, indirect: bool) -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let target = driver.must_alloc(context, 4096)?;
    restart_with_event_idx(&mut driver, 2, size, base)?;
    let ram = Arc::clone(&driver.vm.ram);
    let ring = &driver.vm.rings[2];
    let chains = if indirect { size } else { size / 2 };
    let area = ram.take(0, u64::from(size) * 256, 64)?;
    for chain in 0..chains {
        let at = area + u64::from(chain) * 256;
        // Every other one is answered by another thread, later.
        let fill = Fill { range: Range { address: target, length: 64 }, pattern: 1, width: 1 };
        let known = if chain % 2 == 0 { context } else { context + 1000 };
        ram.write(at, &Request::Fill(fill).encode(Header { tag: 1, context: known, stream: 0 }));
        let request = Descriptor { address: at, len: 64, flags: 1, next: 1 };
        let response = Descriptor { address: at + 64, len: 40, flags: 2, next: 0 };
        if indirect {
            ram.write(at + 128, &request.bytes());
            ram.write(at + 144, &response.bytes());
            ring.write_descriptor(chain, Descriptor { address: at + 128, len: 32, flags: 4, next: 0 });
        } else {
            ring.write_descriptor(chain * 2, Descriptor { next: chain * 2 + 1, ..request });
            ring.write_descriptor(chain * 2 + 1, response);
        }
    }
    let mut events = EventRing {
        ram: Arc::clone(&ram),
        size,
        available: ring.available,
        used: ring.used,
        next: base,
        seen: base,
        kicks: 0,
    };
    let epoll = Epoll::new()?;
    epoll.ctl(ControlOperation::Add, ring.call.as_raw_fd(), EpollEvent::new(EventSet::IN, 0))?;
    let mut idle: Vec<u16> = (0..chains).map(|chain| if indirect { chain } else { chain * 2 }).collect();
    let (mut sent, mut done) = (0u64, 0u64);
    while done < requests {
        let old = events.next;
        while sent < requests
            && let Some(head) = idle.pop()
        {
            events.publish(head);
            sent += 1;
        }
        events.kick(ring, old);
        while events.ask() == 0 {
            let mut fired = [EpollEvent::default()];
            let count = epoll.wait(10_000, &mut fired)?;
            ensure!(count > 0, "no interrupt after {done} of {requests} requests, ring of {size}");
            let _ = ring.call.read();
        }
        while ram.load_u16(events.used + 2) != events.seen {
            let slot = u64::from(events.seen % size);
            let head = ram.read(events.used + 4 + slot * 8, 8);
            ensure!(head[4..] == 40u32.to_le_bytes(), "used length {:?}", &head[4..]);
            idle.push(u16::from_le_bytes([head[0], head[1]]));
            events.seen = events.seen.wrapping_add(1);
            done += 1;
        }
    }
    assert!(events.kicks <= requests);
    // And it stops where it should.
    assert_eq!(driver.vm.stop_ring(2)?, base.wrapping_add(requests as u16));
    Ok(())
}

#[test]
fn event_idx_past_the_wrap_loses_no_kick_and_no_interrupt() -> Result<()> {
    run_past_the_wrap(64, 0, 70_000, false)
}

#[test]
fn event_idx_with_indirect_chains_from_just_before_the_wrap_goes_on() -> Result<()> {
    run_past_the_wrap(256, 65_500, 5_000, true)
}

#[test]
fn event_idx_on_rings_of_one_and_of_1024_entries_works() -> Result<()> {
    run_past_the_wrap(1, 65_530, 2_000, true)?;
    run_past_the_wrap(1024, 65_000, 4_000, false)
}

#[test]
fn event_idx_that_asks_for_silence_gets_it() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    restart_with_event_idx(&mut driver, 2, 16, 0)?;
    let ram = Arc::clone(&driver.vm.ram);
    let area = ram.take(0, 128, 64)?;
    ram.write(area, &Request::Fence { all_streams: false }.encode(Header { tag: 1, context: 0, stream: 0 }));
    let ring = &mut driver.vm.rings[2];
    let event = ring.available + 4 + 16 * 2;
    for (round, at) in [(0u16, 100u16), (1, 200), (2, 2), (3, 1000)] {
        ram.store_u16(event, at);
        let head = ring.build(&[(area, 64, false), (area + 64, 40, true)])?;
        ring.publish(head);
        ring.kick();
        ring.wait(WAIT)?;
        std::thread::sleep(Duration::from_millis(20));
        // The first look after a start always interrupts or not as the index says; only entry 2 was asked for.
        assert_eq!(ring.call.read().is_ok(), round == 2, "round {round}");
    }
    Ok(())
}

#[test]
fn ring_of_one_entry_without_indirect_is_answered_as_malformed() -> Result<()> {
    let daemon = daemon()?;
    let spec = VmSpec { queue_size: 1, queues: 3, ..VmSpec::default() };
    let mut vm = FakeVm::connect(&daemon.socket("a"), &spec)?;
    let area = vm.ram.take(0, 128, 64)?;
    for buffers in [[(area, 64, false)], [(area, 64, true)]] {
        let head = vm.rings[0].build(&buffers)?;
        vm.rings[0].publish(head);
        vm.rings[0].kick();
        let used = vm.rings[0].wait(WAIT)?;
        assert_eq!(used.written, if buffers[0].2 { 40 } else { 0 });
    }
    assert_eq!(vm.ram.read(area, 4), Status::BadChain.code().to_le_bytes());
    Ok(())
}

#[test]
fn ring_that_moves_while_it_runs_goes_on_in_its_new_place() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    for round in 0..5u8 {
        driver.write(context, base, &[round; 32])?;
        let ram = Arc::clone(&driver.vm.ram);
        let fresh = DriverRing::new(&ram, 256)?;
        let old = &driver.vm.rings[2];
        // What the driver and the device have done so far comes along.
        for (from, to, len) in [
            (old.descriptors, fresh.descriptors, 4096),
            (old.available, fresh.available, 518),
            (old.used, fresh.used, 2054),
        ] {
            ram.write(to, &ram.read(from, len));
        }
        let config = VringConfigData {
            queue_max_size: 256,
            queue_size: 256,
            flags: 0,
            desc_table_addr: GuestRam::to_frontend(fresh.descriptors),
            used_ring_addr: GuestRam::to_frontend(fresh.used),
            avail_ring_addr: GuestRam::to_frontend(fresh.available),
            log_addr: None,
        };
        driver.vm.frontend.set_vring_addr(2, &config)?;
        let ring = &mut driver.vm.rings[2];
        (ring.descriptors, ring.available, ring.used) = (fresh.descriptors, fresh.available, fresh.used);
        assert_eq!(driver.read(context, base, 32)?.payload, [round; 32]);
        // Started again though it runs: nothing happens.
        driver.vm.frontend.set_vring_enable(2, true)?;
        driver.vm.frontend.set_vring_kick(2, &driver.vm.rings[2].kick)?;
    }
    Ok(())
}

#[test]
fn memory_table_replaced_by_the_same_while_rings_run_disturbs_nothing() -> Result<()> {
    let daemon = daemon()?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let base = driver.must_alloc(context, MIB)?;
    let infos: Vec<_> = (0..driver.vm.ram.region_count()).map(|i| driver.vm.ram.info(i)).collect();
    for round in 0..20u8 {
        assert_eq!(driver.write(context, base, &[round; 64])?.status(), Status::Ok);
        driver.vm.frontend.set_mem_table(&infos)?;
        assert_eq!(driver.read(context, base, 64)?.payload, [round; 64]);
    }
    // Without the ring's own memory the session is over, and only that.
    let mut neighbour = daemon.driver("b")?;
    let _ = driver.vm.frontend.set_mem_table(&infos[1..]);
    driver.vm.rings[2].kick();
    daemon.expect_all_memory_back()?;
    neighbour.open()?;
    drop(driver);
    daemon.driver("a")?;
    Ok(())
}

/// Counts what this process holds, by kind.
fn held() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).map(Iterator::count).unwrap_or(0);
    (count("/proc/self/fd"), std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count())
}

#[derive(Clone, Debug)]
enum Message {
    Size(u8, u32),
    Address(u8, u32),
    Base(u8, u32),
    Kick(u8, bool),
    Call(u8),
    Enable(u8, bool),
    Stop(u8),
    Features(u8),
    Table(u8),
    Add,
    Remove(u8),
    Reset(bool),
    Request(u8),
}

fn message() -> impl Strategy<Value = Message> {
    // The fifth is not there; most scripts are to get far.
    let ring = prop_oneof![30 => 0..4u8, 1 => Just(4u8)];
    prop_oneof![
        (ring.clone(), prop_oneof![9 => Just(16u32), 9 => Just(256), 1 => any::<u32>()])
            .prop_map(|(r, n)| Message::Size(r, n)),
        (ring.clone(), prop_oneof![9 => Just(0), 1 => any::<u32>()])
            .prop_map(|(r, n)| Message::Address(r, n)),
        (ring.clone(), prop_oneof![9 => Just(0u32), 1 => any::<u32>()])
            .prop_map(|(r, n)| Message::Base(r, n)),
        (ring.clone(), any::<bool>()).prop_map(|(r, n)| Message::Kick(r, n)),
        ring.clone().prop_map(Message::Call),
        (ring.clone(), any::<bool>()).prop_map(|(r, on)| Message::Enable(r, on)),
        ring.clone().prop_map(Message::Stop),
        prop_oneof![20 => 0..5u8, 1 => Just(5u8)].prop_map(Message::Features),
        prop_oneof![20 => Just(0u8), 1 => 1..3u8, 10 => Just(3u8)].prop_map(Message::Table),
        Just(Message::Add),
        (0..2u8).prop_map(Message::Remove),
        any::<bool>().prop_map(Message::Reset),
        (0..4u8).prop_map(Message::Request),
    ]
}

fn say(driver: &mut Driver, message: &Message, extra: &GuestRam) -> bool {
    let frontend = &mut driver.vm.frontend;
    let infos: Vec<_> = (0..2).map(|i| driver.vm.ram.info(i)).collect();
    let ring = |r: u8| usize::from(r).min(3);
    match *message {
        Message::Size(r, n) => frontend.set_vring_num(r.into(), n as u16).is_ok(),
        Message::Address(r, n) => {
            let at = &driver.vm.rings[ring(r)];
            let shift = if n % 3 == 0 { 0 } else { u64::from(n) & !15 };
            let config = VringConfigData {
                queue_max_size: 256,
                queue_size: 256,
                flags: 0,
                desc_table_addr: GuestRam::to_frontend(at.descriptors).wrapping_add(shift),
                used_ring_addr: GuestRam::to_frontend(at.used),
                avail_ring_addr: GuestRam::to_frontend(at.available),
                log_addr: None,
            };
            frontend.set_vring_addr(r.into(), &config).is_ok()
        }
        Message::Base(r, n) => frontend.set_vring_base(r.into(), n as u16).is_ok(),
        Message::Kick(r, other) => {
            let kick = if other { &driver.vm.rings[0].kick } else { &driver.vm.rings[ring(r)].kick };
            frontend.set_vring_kick(r.into(), kick).is_ok()
        }
        Message::Call(r) => frontend.set_vring_call(r.into(), &driver.vm.rings[ring(r)].call).is_ok(),
        Message::Enable(r, on) => frontend.set_vring_enable(r.into(), on).is_ok(),
        Message::Stop(r) => frontend.get_vring_base(r.into()).is_ok(),
        Message::Features(n) => {
            let features = [0, 1 << 30, WITH_EVENT_IDX, 1 << 32, WITH_EVENT_IDX & !(1 << 29), 1 << 34];
            frontend.set_features(features[usize::from(n)]).is_ok()
        }
        Message::Table(n) => match n {
            0 => frontend.set_mem_table(&infos).is_ok(),
            1 => frontend.set_mem_table(&infos[1..]).is_ok(),
            2 => frontend.set_mem_table(&[infos[0], infos[0]]).is_ok(),
            _ => frontend.set_mem_table(&[infos[0], infos[1], extra.info(0)]).is_ok(),
        },
        Message::Add => frontend.add_mem_region(&extra.info(0)).is_ok(),
        Message::Remove(n) => {
            let info = if n == 0 { extra.info(0) } else { infos[1] };
            frontend.remove_mem_region(&info).is_ok()
        }
        Message::Reset(owner) => {
            if owner {
                frontend.reset_owner().is_ok()
            } else {
                frontend.reset_device().is_ok()
            }
        }
        Message::Request(r) => {
            for queue in [0, 2, 3] {
                let ring = &mut driver.vm.rings[queue];
                if let Ok(head) =
                    ring.build(&[(0x10_0000 + u64::from(r) * 8, 64, false), (0x10_4000, 64, true)])
                {
                    ring.publish(head);
                    ring.kick();
                }
            }
            true
        }
    }
}

/// Messages in any order, many sessions one after the other: the neighbour never notices, and nothing is left behind.
#[test]
fn messages_in_any_order_leave_nothing_behind_and_disturb_nobody() -> Result<()> {
    let daemon = daemon()?;
    let mut neighbour = daemon.driver("b")?;
    let context = neighbour.open()?;
    let base = neighbour.must_alloc(context, MIB)?;
    neighbour.write(context, base, b"neighbour")?;
    let extra = GuestRam::new(&[vram_testkit::RamRegion { start: 2 << 32, len_bytes: MIB }])?;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let script = proptest::collection::vec(message(), 1..40);
    let (mut after_first, mut said) = (None, 0);
    for round in 0..60 {
        let messages = script.new_tree(&mut runner).expect("a script").current();
        {
            let mut driver = daemon.driver("a").with_context(|| format!("round {round}"))?;
            let mine = driver.open()?;
            driver.must_alloc(mine, 3 * MIB)?;
            // The first one refused cuts the connection.
            said += messages.iter().take_while(|message| say(&mut driver, message, &extra)).count();
        }
        let started = Instant::now();
        assert_eq!(neighbour.read(context, base, 9)?.payload, b"neighbour");
        daemon.expect_used(2 * MIB)?;
        ensure!(started.elapsed() < WAIT, "round {round}");
        if round == 10 {
            after_first = Some(held());
        }
    }
    ensure!(said > 300, "only {said} messages were taken");
    let (descriptors, maps) = after_first.context("ten rounds")?;
    let until = Instant::now() + WAIT;
    // Other tests of this process come and go; only growth by a piece a round is a leak.
    while held().0 > descriptors + 40 || held().1 > maps + 40 {
        ensure!(Instant::now() < until, "{:?} now, ({descriptors}, {maps}) before fifty rounds", held());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(daemon.sim.counts().events, 0);
    Ok(())
}
