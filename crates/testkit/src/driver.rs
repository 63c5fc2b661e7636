//! A well-behaved driver, one request at a time.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use vram_protocol::{
    ABI_MAJOR, ABI_MINOR, Advice, Advise, Alloc, ContextOpen, Copy, Fill, Header, Hello, Query, QueueKind,
    REQUEST_BYTES, RESPONSE_BYTES, Range, Request, Response, Status,
};

use crate::load::Slot;
use crate::{FakeVm, VmSpec};

/// How long an answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A response and what followed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The response.
    pub response: Response,
    /// Bytes behind it that the device says it wrote.
    pub payload: Vec<u8>,
}

impl Answer {
    /// The status.
    pub fn status(&self) -> Status {
        self.response.status
    }
}

/// A driver over a fake VM.
pub struct Driver {
    /// The VM.
    pub vm: FakeVm,
    request_area: u64,
    response_area: u64,
    data_area: u64,
    data_bytes: u64,
    next_tag: u64,
    /// By bytes of data.
    pub(crate) load_slots: HashMap<u64, Vec<Slot>>,
}

impl Driver {
    /// Connects a VM and sets up buffers; says no HELLO.
    pub fn connect(socket: &Path, spec: &VmSpec) -> Result<Self> {
        let vm = FakeVm::connect(socket, spec)?;
        let request_area = vm.ram.take(0, 4096, 4096)?;
        let response_area = vm.ram.take(0, 65536, 4096)?;
        let last = vm.ram.region_count() - 1;
        let data_bytes = 8 << 20;
        let data_area = vm.ram.take(last, data_bytes, 4096)?;
        Ok(Self {
            vm,
            request_area,
            response_area,
            data_area,
            data_bytes,
            next_tag: 1,
            load_slots: HashMap::new(),
        })
    }

    /// Sends bytes as a request on a queue and waits for the answer. `payload` is readable data behind the request,
    /// `room` writable bytes behind the response.
    pub fn send_bytes(
        &mut self,
        queue: usize,
        request: &[u8],
        payload: &[u8],
        room: u64,
    ) -> Result<Option<Answer>> {
        ensure!(payload.len() as u64 + room <= self.data_bytes, "the driver's data area is smaller");
        let ram = &self.vm.ram;
        ram.write(self.request_area, request);
        ram.write(self.response_area, &[0xee; RESPONSE_BYTES]);
        ram.write(self.data_area, payload);
        let mut buffers = vec![(self.request_area, u32::try_from(request.len())?, false)];
        if !payload.is_empty() {
            buffers.push((self.data_area, u32::try_from(payload.len())?, false));
        }
        buffers.push((self.response_area, u32::try_from(RESPONSE_BYTES)?, true));
        if room > 0 {
            buffers.push((self.data_area + payload.len() as u64, u32::try_from(room)?, true));
        }
        let ring = &mut self.vm.rings[queue];
        let head = ring.build(&buffers)?;
        ring.publish(head);
        ring.kick();
        let used = ring.wait(ANSWER_WAIT)?;
        ensure!(used.head == head, "another chain came back");
        if used.written == 0 {
            return Ok(None);
        }
        let bytes: [u8; RESPONSE_BYTES] =
            self.vm.ram.read(self.response_area, RESPONSE_BYTES).try_into().expect("as many as asked for");
        let response = Response::from_bytes(&bytes).context("an unknown status")?;
        let following =
            (used.written as usize).checked_sub(RESPONSE_BYTES).context("a used length below 40")?;
        let payload = self.vm.ram.read(self.data_area + payload.len() as u64, following);
        Ok(Some(Answer { response, payload }))
    }

    /// Sends a request where it belongs.
    pub fn send(
        &mut self,
        context: u32,
        stream: u32,
        request: &Request,
        payload: &[u8],
        room: u64,
    ) -> Result<Answer> {
        let tag = self.next_tag;
        self.next_tag += 1;
        let bytes: [u8; REQUEST_BYTES] = request.encode(Header { tag, context, stream });
        let queue = if request.opcode().queue() == QueueKind::Control { 0 } else { 2 };
        let answer = self
            .send_bytes(queue, &bytes, payload, room)?
            .context("the chain came back without an answer")?;
        ensure!(answer.response.tag == tag, "the tag came back as {}", answer.response.tag);
        Ok(answer)
    }

    fn expect_ok(answer: Answer) -> Result<Answer> {
        if answer.status() != Status::Ok {
            bail!("{}", answer.status());
        }
        Ok(answer)
    }

    /// HELLO.
    pub fn hello(&mut self, driver_epoch: u64) -> Result<Answer> {
        let hello = Hello { abi_major: ABI_MAJOR, abi_minor: ABI_MINOR, driver_epoch };
        Self::expect_ok(self.send(0, 0, &Request::Hello(hello), &[], 64)?)
    }

    /// CONTEXT_OPEN; returns the context.
    pub fn open(&mut self) -> Result<u32> {
        let open = ContextOpen { label: [0; 32] };
        let answer = Self::expect_ok(self.send(0, 0, &Request::ContextOpen(open), &[], 0)?)?;
        Ok(u32::try_from(answer.response.value)?)
    }

    /// CONTEXT_CLOSE.
    pub fn close(&mut self, context: u32) -> Result<Answer> {
        self.send(context, 0, &Request::ContextClose, &[], 0)
    }

    /// ALLOC.
    pub fn alloc(&mut self, context: u32, length: u64, alignment: u64) -> Result<Answer> {
        self.send(context, 0, &Request::Alloc(Alloc { length, alignment }), &[], 0)
    }

    /// ALLOC that must succeed; returns the address.
    pub fn must_alloc(&mut self, context: u32, length: u64) -> Result<u64> {
        Ok(Self::expect_ok(self.alloc(context, length, 0)?)?.response.value)
    }

    /// FREE.
    pub fn free(&mut self, context: u32, address: u64) -> Result<Answer> {
        self.send(context, 0, &Request::Free(address), &[], 0)
    }

    /// QUERY.
    pub fn query(&mut self, context: u32, address: u64, first_extent: u32, room: u64) -> Result<Answer> {
        self.send(context, 0, &Request::Query(Query { address, first_extent }), &[], room)
    }

    /// ADVISE.
    pub fn advise(&mut self, context: u32, address: u64, length: u64, advice: Advice) -> Result<Answer> {
        let advise = Advise { range: Range { address, length }, advice };
        self.send(context, 0, &Request::Advise(advise), &[], 0)
    }

    /// INFO.
    pub fn info(&mut self, room: u64) -> Result<Answer> {
        self.send(0, 0, &Request::Info, &[], room)
    }

    /// WRITE.
    pub fn write(&mut self, context: u32, address: u64, bytes: &[u8]) -> Result<Answer> {
        let range = Range { address, length: bytes.len() as u64 };
        self.send(context, 0, &Request::Write(range), bytes, 0)
    }

    /// READ.
    pub fn read(&mut self, context: u32, address: u64, length: u64) -> Result<Answer> {
        self.send(context, 0, &Request::Read(Range { address, length }), &[], length)
    }

    /// COPY.
    pub fn copy(&mut self, context: u32, destination: u64, source: u64, length: u64) -> Result<Answer> {
        self.send(context, 0, &Request::Copy(Copy { destination, source, length }), &[], 0)
    }

    /// FILL.
    pub fn fill(
        &mut self,
        context: u32,
        address: u64,
        length: u64,
        pattern: u32,
        width: u32,
    ) -> Result<Answer> {
        let fill = Fill { range: Range { address, length }, pattern, width };
        self.send(context, 0, &Request::Fill(fill), &[], 0)
    }

    /// FENCE.
    pub fn fence(&mut self, context: u32, stream: u32, all_streams: bool) -> Result<Answer> {
        self.send(context, stream, &Request::Fence { all_streams }, &[], 0)
    }
}
