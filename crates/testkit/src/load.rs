//! Many requests in flight on one queue: the driver's half of a bandwidth or rate measurement.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;
use vram_protocol::{Header, RESPONSE_BYTES, Request, Response, Status};

use crate::Driver;

/// How long an interrupt may take.
const INTERRUPT_WAIT_MS: i32 = 30_000;

/// What to keep a queue busy with.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of data in each chain: of a WRITE or READ; zero for others.
    pub data_bytes: u64,
    /// Requests under way at once.
    pub in_flight: usize,
    /// Requests in all.
    pub requests: u64,
}

/// Guest memory of one request under way.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    request: u64,
    response: u64,
    data: u64,
}

impl Driver {
    /// Runs a load on a queue: `make` gives the n-th request. Interrupt driven, as a driver under load is. Returns how
    /// long it took; every answer must be OK.
    pub fn run_load(
        &mut self,
        queue: usize,
        context: u32,
        stream: u32,
        load: Load,
        mut make: impl FnMut(u64) -> Request,
    ) -> Result<Duration> {
        let slots = self.load_slots(load)?;
        let call = self.vm.rings[queue].call.try_clone().context("eventfd")?;
        let interrupt = Interrupt::of(&call)?;
        let mut by_head = vec![0usize; usize::from(self.vm.rings[queue].size)];
        let mut idle: Vec<usize> = (0..slots.len()).collect();
        let (mut sent, mut done) = (0, 0);
        let started = Instant::now();
        while done < load.requests {
            let mut kick = false;
            while sent < load.requests
                && let Some(slot) = idle.pop()
            {
                let request = make(sent);
                let reads = matches!(request, Request::Read(_));
                let Slot { request: at, response, data } = slots[slot];
                self.vm.ram.write(at, &request.encode(Header { tag: sent, context, stream }));
                let ring = &mut self.vm.rings[queue];
                let data_len = u32::try_from(load.data_bytes)?;
                let whole =
                    [(at, 64, false), (data, data_len, reads), (response, RESPONSE_BYTES as u32, true)];
                let head = match (load.data_bytes, reads) {
                    (0, _) => ring.build(&[whole[0], whole[2]])?,
                    (_, false) => ring.build(&whole)?,
                    (_, true) => ring.build(&[whole[0], whole[2], whole[1]])?,
                };
                by_head[usize::from(head)] = slot;
                ring.publish(head);
                sent += 1;
                kick = true;
            }
            if kick {
                self.vm.rings[queue].kick();
            }
            let before = done;
            while let Some(used) = self.vm.rings[queue].poll() {
                let slot = by_head[usize::from(used.head)];
                let bytes = self.vm.ram.read(slots[slot].response, RESPONSE_BYTES);
                let bytes: [u8; RESPONSE_BYTES] = bytes.try_into().expect("as many as asked for");
                let status = Response::from_bytes(&bytes).context("an unknown status")?.status;
                ensure!(status == Status::Ok, "a request of the load was answered {status}");
                idle.push(slot);
                done += 1;
            }
            if done == before {
                interrupt.wait()?;
            }
        }
        Ok(started.elapsed())
    }

    /// Guest memory for a load, the same for every load of its kind: only the first pays for touching it.
    fn load_slots(&mut self, load: Load) -> Result<Vec<Slot>> {
        let last = self.vm.ram.region_count() - 1;
        let slots = self.load_slots.entry(load.data_bytes).or_default();
        while slots.len() < load.in_flight {
            slots.push(Slot {
                request: self.vm.ram.take(0, 64, 64)?,
                response: self.vm.ram.take(0, 64, 64)?,
                data: if load.data_bytes > 0 { self.vm.ram.take(last, load.data_bytes, 4096)? } else { 0 },
            });
        }
        Ok(slots.iter().take(load.in_flight).copied().collect())
    }
}

/// Sleeps until the device interrupts.
struct Interrupt<'a> {
    call: &'a EventFd,
    epoll: Epoll,
}

impl<'a> Interrupt<'a> {
    fn of(call: &'a EventFd) -> Result<Self> {
        let epoll = Epoll::new().context("epoll")?;
        let event = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, call.as_raw_fd(), event).context("epoll")?;
        Ok(Self { call, epoll })
    }

    fn wait(&self) -> Result<()> {
        let mut events = [EpollEvent::default()];
        let ready = self.epoll.wait(INTERRUPT_WAIT_MS, &mut events).context("epoll")?;
        ensure!(ready > 0, "the device did not interrupt within {INTERRUPT_WAIT_MS} ms");
        // Emptied by us alone; a failure only means another look at the ring.
        let _ = self.call.read();
        Ok(())
    }
}
