//! A driver written from the tables of `docs/protocol.md` alone: every byte is laid by hand at the offsets printed
//! there, none of this project's structures is used, and the daemon is the real binary.

use std::time::Duration;

use anyhow::{Result, ensure};
use vram_testkit::{Driver, FakeVm, VmSpec};
use vram_tests::{Gpus, RandomGuest, SpawnedVramd};

struct Wire {
    vm: FakeVm,
    area: u64,
}

/// A request of 64 bytes: section 2.1.
fn request(opcode: u16, context: u32, tag: u64, stream: u32, body: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0u8; 64];
    bytes[0..2].copy_from_slice(&opcode.to_le_bytes());
    bytes[4..8].copy_from_slice(&context.to_le_bytes());
    bytes[8..16].copy_from_slice(&tag.to_le_bytes());
    bytes[16..20].copy_from_slice(&stream.to_le_bytes());
    for (offset, field) in body {
        bytes[24 + offset..24 + offset + field.len()].copy_from_slice(field);
    }
    bytes
}

/// A response of 40 bytes: section 2.2.
#[derive(Debug)]
struct Response {
    status: u32,
    tag: u64,
    moved: u64,
    value: u64,
    epoch: u64,
    behind: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Wire {
    /// Section 2: readable request and data, then writable response and room.
    fn call(&mut self, queue: usize, request: &[u8], data: &[u8], room: u32) -> Result<Response> {
        let (at_request, at_response, at_data) = (self.area, self.area + 64, self.area + 128);
        let at_room = at_data + (64 << 10);
        self.vm.ram.write(at_request, request);
        self.vm.ram.write(at_data, data);
        let mut buffers = vec![(at_request, 64, false)];
        if !data.is_empty() {
            buffers.push((at_data, data.len() as u32, false));
        }
        buffers.push((at_response, 40, true));
        if room > 0 {
            buffers.push((at_room, room, true));
        }
        let ring = &mut self.vm.rings[queue];
        let head = ring.build(&buffers)?;
        ring.publish(head);
        ring.kick();
        let used = ring.wait(Duration::from_secs(10))?;
        ensure!(used.head == head && used.written >= 40, "no answer");
        let bytes = self.vm.ram.read(at_response, 40);
        ensure!(u32_at(&bytes, 4) == 0, "reserved0 of the response is not zero");
        Ok(Response {
            status: u32_at(&bytes, 0),
            tag: u64_at(&bytes, 8),
            moved: u64_at(&bytes, 16),
            value: u64_at(&bytes, 24),
            epoch: u64_at(&bytes, 32),
            behind: self.vm.ram.read(at_room, used.written as usize - 40),
        })
    }
}

#[test]
fn driver_written_from_the_document_moves_data() -> Result<()> {
    moves_data(Gpus::Sim, "2x8MiB,fresh=dirty")
}

#[test]
fn driver_written_from_the_document_moves_data_through_the_cuda_backend() -> Result<()> {
    // The daemon leaves half a gibibyte of a GPU it believes real; a simulated driver says that it is none.
    moves_data(Gpus::SimulatedDriver, "2x8MiB,fresh=dirty")
}

#[test]
fn guests_at_random_see_their_own_bytes_only_through_the_cuda_backend() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let slices = ["a=24MiB,guarantee=12MiB,queues=2", "b=24MiB,guarantee=12MiB,queues=2"];
    let mut vramd = SpawnedVramd::start(
        Gpus::SimulatedDriver,
        "3x16MiB,fresh=dirty,peers=none,links=sys",
        &slices,
        dir.path(),
    )?;
    std::thread::scope(|scope| {
        let guests: Vec<_> = [("a", 1), ("b", 2)]
            .map(|(name, seed)| {
                let socket = dir.path().join(format!("{name}.sock"));
                scope.spawn(move || -> Result<()> {
                    let mut guest = RandomGuest::new(seed);
                    for life in 1..=3 {
                        let mut driver =
                            Driver::connect(&socket, &VmSpec { queues: 4, ..VmSpec::default() })?;
                        driver.hello(life)?;
                        guest.live(&mut driver, 300)?;
                    }
                    Ok(())
                })
            })
            .into_iter()
            .collect();
        guests.into_iter().try_for_each(|guest| guest.join().expect("a guest's thread panicked"))
    })?;
    ensure!(vramd.is_running()?, "vramd has ended");
    Ok(())
}

fn moves_data(gpus: Gpus, description: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let _vramd = SpawnedVramd::start(gpus, description, &["t=12MiB,queues=1"], dir.path())?;
    let spec = VmSpec { queues: 3, ..VmSpec::default() };
    let vm = FakeVm::connect(&dir.path().join("t.sock"), &spec)?;
    let area = vm.ram.take(0, 256 << 10, 4096)?;
    let mut wire = Wire { vm, area };

    // 1.1 configuration space.
    let config = wire.vm.config(0, 64)?;
    assert_eq!(u32_at(&config, 0), 0x4d41_5256);
    assert_eq!((u16_at(&config, 4), u16_at(&config, 6)), (1, 1));
    assert_eq!(u16_at(&config, 8), 1);
    assert_eq!(u16_at(&config, 10), 0);
    assert_eq!(u32_at(&config, 12), 1024);
    assert_eq!(u64_at(&config, 16), 4_194_304);
    let boot_epoch = u64_at(&config, 24);
    assert_ne!(boot_epoch, 0);
    assert_eq!(config[32..64], [0; 32]);

    // 3.1 HELLO.
    let hello = request(
        0x0001,
        0,
        11,
        0,
        &[(0, &1u16.to_le_bytes()), (2, &7u16.to_le_bytes()), (8, &0xabcd_u64.to_le_bytes())],
    );
    let answer = wire.call(0, &hello, &[], 64)?;
    assert_eq!((answer.status, answer.tag, answer.moved, answer.value), (0, 11, 64, 0));
    assert_eq!(answer.epoch, boot_epoch);
    let reply = answer.behind;
    assert_eq!((u16_at(&reply, 0), u16_at(&reply, 2)), (1, 1), "the smaller minor version");
    assert_eq!((u32_at(&reply, 4), u32_at(&reply, 8), u32_at(&reply, 12)), (1024, 1_048_576, 1024));
    let (band_base, band_length) = (u64_at(&reply, 16), u64_at(&reply, 24));
    assert_eq!(u64_at(&reply, 32), 12 << 20);
    assert_eq!(u64_at(&reply, 40), 4_194_304);
    assert_eq!(
        (u32_at(&reply, 48), u32_at(&reply, 52), u32_at(&reply, 56), u32_at(&reply, 60)),
        (256, 2, 1, 0)
    );

    // 3.3 CONTEXT_OPEN.
    let open = request(0x0003, 0, 12, 0, &[(0, b"hand-made")]);
    let answer = wire.call(0, &open, &[], 0)?;
    assert_eq!((answer.status, answer.moved), (0, 0));
    let context = u32::try_from(answer.value)?;
    assert_ne!(context, 0);

    // 3.5 ALLOC: 10 MiB, more than either GPU.
    let length: u64 = 10 << 20;
    let alloc = request(0x0010, context, 13, 0, &[(0, &length.to_le_bytes()), (8, &4096u64.to_le_bytes())]);
    let answer = wire.call(0, &alloc, &[], 0)?;
    assert_eq!(answer.status, 0);
    let address = answer.value;
    assert!(address >= band_base && address + length <= band_base + band_length);
    assert_eq!(address % 4096, 0);

    // 3.7 QUERY: two GPUs.
    let query = request(0x0012, context, 14, 0, &[(0, &(address + 9).to_le_bytes())]);
    let answer = wire.call(0, &query, &[], 32 + 8 * 32)?;
    assert_eq!(answer.status, 0);
    let reply = answer.behind;
    assert_eq!((u64_at(&reply, 0), u64_at(&reply, 8)), (address, length));
    let extents = u32_at(&reply, 16);
    assert_eq!(extents, u32_at(&reply, 20));
    let mut covered = 0;
    let mut gpus = Vec::new();
    for i in 0..extents as usize {
        let at = 32 + i * 32;
        assert_eq!(u64_at(&reply, at), address + covered);
        covered += u64_at(&reply, at + 8);
        gpus.push(u32_at(&reply, at + 16));
        assert_eq!(u32_at(&reply, at + 20), 0, "on a GPU");
    }
    assert_eq!(covered, length);
    assert_ne!(gpus.first(), gpus.last());

    // 3.12 ADVISE: a range of the allocation is best on GPU 1; there is no GPU 9, and no advice 9.
    let advise = |advice: u32, argument: u32| {
        let (advice, argument) = (advice.to_le_bytes(), argument.to_le_bytes());
        let range: [(usize, &[u8]); 2] = [(0, &(address + 7).to_le_bytes()), (8, &4096u64.to_le_bytes())];
        request(0x0013, context, 23, 0, &[range[0], range[1], (16, &advice), (20, &argument)])
    };
    let answer = wire.call(0, &advise(5, 1), &[], 0)?;
    assert_eq!((answer.status, answer.tag, answer.moved, answer.value), (0, 23, 0, 0));
    assert_eq!(wire.call(0, &advise(5, 9), &[], 0)?.status, 2);
    assert_eq!(wire.call(0, &advise(9, 0), &[], 0)?.status, 2);

    // 3.10 FILL, 3.8 WRITE over the border of the GPUs, 3.9 COPY, 3.8 READ, 3.11 FENCE.
    let border = address + (8 << 20);
    let fill = request(
        0x0023,
        context,
        15,
        3,
        &[
            (0, &address.to_le_bytes()),
            (8, &length.to_le_bytes()),
            (16, &0x1122_3344u32.to_le_bytes()),
            (20, &4u32.to_le_bytes()),
        ],
    );
    let answer = wire.call(2, &fill, &[], 0)?;
    assert_eq!((answer.status, answer.moved), (0, length));
    let data: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
    let at = border - 2500;
    let write = request(0x0020, context, 16, 3, &[(0, &at.to_le_bytes()), (8, &5000u64.to_le_bytes())]);
    let answer = wire.call(2, &write, &data, 0)?;
    assert_eq!((answer.status, answer.tag, answer.moved), (0, 16, 5000));
    let copy = request(
        0x0022,
        context,
        17,
        3,
        &[(0, &(address + 1).to_le_bytes()), (8, &5000u64.to_le_bytes()), (16, &at.to_le_bytes())],
    );
    assert_eq!(wire.call(2, &copy, &[], 0)?.status, 0);
    let mut fence = request(0x0024, context, 18, 0, &[]);
    fence[2] = 1;
    assert_eq!(wire.call(2, &fence, &[], 0)?.status, 0);
    let read = request(0x0021, context, 19, 0, &[(0, &address.to_le_bytes()), (8, &5003u64.to_le_bytes())]);
    let answer = wire.call(2, &read, &[], 5003)?;
    assert_eq!((answer.status, answer.moved), (0, 5003));
    assert_eq!(answer.behind[0], 0x44);
    assert!(answer.behind[1..5001] == data);
    assert_eq!(answer.behind[5001..], [0x33, 0x22], "bytes 5001 and 5002 of the pattern");

    // 3.2 INFO.
    let info = request(0x0002, 0, 20, 0, &[]);
    let answer = wire.call(0, &info, &[], 96 + 2 * 64)?;
    assert_eq!((answer.status, answer.moved), (0, 96 + 2 * 64));
    let reply = answer.behind;
    assert_eq!((u64_at(&reply, 0), u64_at(&reply, 16), u64_at(&reply, 24)), (12 << 20, length, length));
    assert_eq!(u64_at(&reply, 32), 2 << 20);
    assert_eq!(
        (u32_at(&reply, 40), u32_at(&reply, 44), u32_at(&reply, 48), u32_at(&reply, 52)),
        (2, 1, 1, 1)
    );
    assert_eq!(&reply[64..66], b"t\0");
    let on_gpus = u64_at(&reply, 96 + 8) + u64_at(&reply, 96 + 64 + 8);
    assert_eq!(on_gpus, length);

    // 3.6 FREE, and the address is gone: status 8.
    let free = request(0x0011, context, 21, 0, &[(0, &address.to_le_bytes())]);
    assert_eq!(wire.call(0, &free, &[], 0)?.status, 0);
    assert_eq!(wire.call(0, &free, &[], 0)?.status, 8);
    assert_eq!(wire.call(2, &read, &[], 5003)?.status, 8);

    // 3.4 CONTEXT_CLOSE: afterwards status 7. An opcode nobody defined: status 3. On the wrong queue: status 4.
    let close = request(0x0004, context, 22, 0, &[]);
    assert_eq!(wire.call(0, &close, &[], 0)?.status, 0);
    assert_eq!(wire.call(0, &close, &[], 0)?.status, 7);
    assert_eq!(wire.call(0, &request(0x0099, 0, 1, 0, &[]), &[], 0)?.status, 3);
    assert_eq!(wire.call(2, &hello, &[], 64)?.status, 4);
    Ok(())
}
