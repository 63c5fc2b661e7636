//! Every request, through a real socket and real rings, on simulated GPUs.

use anyhow::Result;
use vram_protocol::{Advice, Hello, RESPONSE_BYTES, Request, Status};
use vram_testkit::{Answer, Driver, VmSpec};
use vram_tests::{SHARD_BYTES, TestDaemon};

const MIB: u64 = 1 << 20;
/// Fresh shards hold garbage, as those of a real GPU may.
const GPUS: &str = "4x16MiB,fresh=dirty";

fn start() -> Result<(TestDaemon, Driver, u32)> {
    let daemon = TestDaemon::start(GPUS, &[("a", 48 * MIB, 32 * MIB), ("b", 16 * MIB, 16 * MIB)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    Ok((daemon, driver, context))
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(len)
    .collect()
}

fn ok(answer: Answer) -> Answer {
    assert_eq!(answer.status(), Status::Ok);
    answer
}

#[test]
fn write_then_read_over_shards_and_gpus_gives_the_bytes_back() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    // More than one GPU has: the allocation lies on at least two.
    let length = 20 * MIB;
    let base = driver.must_alloc(context, length)?;
    let extents = ok(driver.query(context, base, 0, 4096)?);
    assert!(extents.payload.len() >= 32 + 2 * 32, "expected several GPUs");
    let data = bytes(1, 3 * MIB as usize + 777);
    // Odd offsets, over the edges of shards and of GPUs.
    for offset in [0, 1, SHARD_BYTES - 5, 15 * MIB + 13, 16 * MIB - 1, length - data.len() as u64] {
        assert_eq!(ok(driver.write(context, base + offset, &data)?).response.moved, data.len() as u64);
        let back = ok(driver.read(context, base + offset, data.len() as u64)?);
        assert_eq!(back.response.moved, data.len() as u64);
        assert!(back.payload == data, "bytes differ at offset {offset}");
    }
    ok(driver.free(context, base)?);
    drop(driver);
    daemon.expect_all_memory_back()
}

#[test]
fn copy_between_allocations_on_different_gpus_moves_the_bytes() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let length = 12 * MIB;
    let (source, target) = (driver.must_alloc(context, length)?, driver.must_alloc(context, length)?);
    let data = bytes(2, 4 * MIB as usize);
    for i in 0..3 {
        ok(driver.write(context, source + i * 4 * MIB, &data)?);
    }
    let answer = ok(driver.copy(context, target + 3, source + 1, length - 7)?);
    assert_eq!(answer.response.moved, length - 7);
    let back = ok(driver.read(context, target + 3, 4 * MIB - 1)?);
    assert!(back.payload == data[1..]);
    let edge = ok(driver.read(context, target, 3)?);
    assert_eq!(edge.payload, [0, 0, 0], "bytes before the copy changed");
    Ok(())
}

#[test]
fn fill_every_width_repeats_the_pattern() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let base = driver.must_alloc(context, 6 * MIB)?;
    for (width, pattern, expect) in [
        (1u32, 0xffff_ff5au32, vec![0x5a]),
        (2, 0xdead_1234, vec![0x34, 0x12]),
        (4, 0x0102_0304, vec![4, 3, 2, 1]),
    ] {
        ok(driver.fill(context, base + 4, 5 * MIB, pattern, width)?);
        let back = ok(driver.read(context, base + SHARD_BYTES - 8, 16)?);
        assert_eq!(back.payload, expect.repeat(16 / expect.len()));
    }
    for (address, length, width, status) in [
        (base + 1, 2, 2, Status::BadAlignment),
        (base, 3, 2, Status::BadAlignment),
        (base + 2, 4, 4, Status::BadAlignment),
        (base, 4, 3, Status::BadAlignment),
        (base, 4, 0, Status::BadAlignment),
        (base, 0, 1, Status::BadLength),
        (base, 6 * MIB + 1, 1, Status::BadAddress),
        (u64::MAX, 1, 1, Status::BadAddress),
    ] {
        assert_eq!(driver.fill(context, address, length, 0, width)?.status(), status);
    }
    Ok(())
}

#[test]
fn alloc_fresh_and_reused_memory_reads_as_zeros() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    // An anchor keeps the region alive, so that the freed part is scrubbed in place and reused.
    let anchor = driver.must_alloc(context, 4096)?;
    for round in 0..20u64 {
        let base = driver.must_alloc(context, MIB)?;
        let back = ok(driver.read(context, base, MIB)?);
        assert!(back.payload.iter().all(|byte| *byte == 0), "round {round}: not zero");
        ok(driver.write(context, base, &bytes(round + 3, MIB as usize))?);
        ok(driver.free(context, base)?);
    }
    ok(driver.free(context, anchor)?);
    Ok(())
}

#[test]
fn alloc_bad_values_are_refused_with_their_status() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    for (length, alignment, status) in [
        (0, 0, Status::BadLength),
        (4096, 3, Status::BadAlignment),
        (4096, 2 << 30, Status::BadAlignment),
        (48 * MIB + 1, 0, Status::OverLimit),
        (u64::MAX, 0, Status::OverLimit),
        (u64::MAX - 255, 1 << 30, Status::OverLimit),
    ] {
        assert_eq!(driver.alloc(context, length, alignment)?.status(), status, "{length} {alignment}");
    }
    for alignment in [256u64, 4096, 1 << 21, 1 << 30] {
        let base = ok(driver.alloc(context, 1, alignment)?).response.value;
        assert_eq!(base % alignment, 0);
    }
    Ok(())
}

#[test]
fn alloc_above_the_limit_is_refused_and_changes_nothing() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    // 64 MiB in all, 16 of them promised to b.
    let base = driver.must_alloc(context, 48 * MIB)?;
    assert_eq!(driver.alloc(context, 1, 0)?.status(), Status::OverLimit);
    let mut other = daemon.driver("b")?;
    let other_context = other.open()?;
    other.must_alloc(other_context, 16 * MIB)?;
    assert_eq!(other.alloc(other_context, 1, 0)?.status(), Status::OverLimit);
    ok(driver.free(context, base)?);
    // The freed shards are being given back: the next allocation waits for them rather than failing.
    driver.must_alloc(context, 48 * MIB)?;
    Ok(())
}

#[test]
fn alloc_above_what_others_are_promised_is_out_of_memory_and_changes_nothing() -> Result<()> {
    let daemon = TestDaemon::start("2x16MiB", &[("a", 32 * MIB, 0), ("b", 32 * MIB, 12 * MIB)])?;
    let mut driver = daemon.driver("a")?;
    let context = driver.open()?;
    let usage = || {
        let pool = daemon.residency().pool();
        pool.slices().filter_map(|slice| pool.usage(slice)).collect::<Vec<_>>()
    };
    driver.must_alloc(context, 4 * MIB)?;
    let before = usage();
    assert_eq!(driver.alloc(context, 20 * MIB, 0)?.status(), Status::OutOfMemory);
    assert_eq!(usage(), before);
    driver.must_alloc(context, 16 * MIB)?;
    assert_eq!(driver.alloc(context, 1 << 20, 0)?.status(), Status::OutOfMemory);
    // What was promised is there.
    let mut other = daemon.driver("b")?;
    let other_context = other.open()?;
    other.must_alloc(other_context, 12 * MIB)?;
    assert_eq!(other.alloc(other_context, 1 << 20, 0)?.status(), Status::OutOfMemory);
    Ok(())
}

#[test]
fn free_inside_twice_and_foreign_is_bad_address() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    let other = driver.open()?;
    let base = driver.must_alloc(context, 8192)?;
    for (context, address) in [(context, base + 256), (context, 0), (other, base), (context, u64::MAX)] {
        assert_eq!(driver.free(context, address)?.status(), Status::BadAddress);
    }
    assert_eq!(driver.free(99, base)?.status(), Status::NoContext);
    ok(driver.free(context, base)?);
    assert_eq!(driver.free(context, base)?.status(), Status::BadAddress);
    assert_eq!(driver.read(context, base, 1)?.status(), Status::BadAddress);
    daemon.expect_all_memory_back()
}

#[test]
fn data_requests_outside_one_live_allocation_are_bad_address() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let other = driver.open()?;
    let first = driver.must_alloc(context, 4096)?;
    let second = driver.must_alloc(context, 4096)?;
    let foreign = driver.must_alloc(other, 4096)?;
    let sink = driver.must_alloc(context, 16384)?;
    let outside = [
        (first - 1, 2),
        (first + 4095, 2),
        (first, 4097),
        (first, (second - first) + 1),
        (foreign, 1),
        (0, 1),
        (u64::MAX - 1, 1),
    ];
    for (address, length) in outside {
        assert_eq!(
            driver.read(context, address, length)?.status(),
            Status::BadAddress,
            "read {address:#x}+{length}"
        );
        let data = vec![0; length as usize];
        assert_eq!(driver.write(context, address, &data)?.status(), Status::BadAddress);
        assert_eq!(driver.copy(context, address, sink, length)?.status(), Status::BadAddress);
        assert_eq!(driver.copy(context, sink, address, length)?.status(), Status::BadAddress);
        assert_eq!(driver.fill(context, address, length, 0, 1)?.status(), Status::BadAddress);
    }
    assert_eq!(driver.copy(context, first, first + 8, 9)?.status(), Status::Overlap);
    ok(driver.copy(context, first, first + 8, 8)?);
    assert_eq!(driver.copy(context, first, first, 0)?.status(), Status::BadLength);
    // 256-byte rounding gives nobody a byte more than asked for.
    let odd = driver.must_alloc(context, 100)?;
    assert_eq!(driver.read(context, odd, 101)?.status(), Status::BadAddress);
    Ok(())
}

#[test]
fn transfers_above_the_limit_are_bad_length() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let base = driver.must_alloc(context, 8 * MIB)?;
    assert_eq!(driver.read(context, base, 4 * MIB + 1)?.status(), Status::BadLength);
    assert_eq!(driver.write(context, base, &vec![0; 4 * MIB as usize + 1])?.status(), Status::BadLength);
    ok(driver.read(context, base, 4 * MIB)?);
    Ok(())
}

#[test]
fn hello_again_resumes_and_with_a_new_epoch_begins_anew() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    let base = driver.must_alloc(context, 4 * MIB)?;
    let flags = |answer: Answer| u32::from_le_bytes(answer.payload[56..60].try_into().unwrap());
    assert_eq!(flags(driver.hello(0x1234)?), 3, "simulated, resumed");
    ok(driver.read(context, base, 16)?);
    assert_eq!(flags(driver.hello(0x5678)?), 1, "simulated");
    assert_ne!(driver.open()?, context, "a context's number was given out again");
    assert_eq!(driver.read(context, base, 16)?.status(), Status::NoContext);
    daemon.expect_all_memory_back()
}

#[test]
fn requests_before_hello_are_not_ready() -> Result<()> {
    let daemon = TestDaemon::start(GPUS, &[("a", 16 * MIB, 0)])?;
    let mut driver = Driver::connect(&daemon.socket("a"), &VmSpec::default())?;
    assert_eq!(driver.info(4096)?.status(), Status::NotReady);
    assert_eq!(driver.alloc(1, 1, 0)?.status(), Status::NotReady);
    assert_eq!(driver.read(1, 0x1000, 1)?.status(), Status::NotReady);
    assert_eq!(driver.fence(1, 0, true)?.status(), Status::NotReady);
    assert_eq!(driver.advise(1, 0x1000, 1, Advice::Cold)?.status(), Status::NotReady);
    let bad = Request::Hello(Hello { abi_major: 2, abi_minor: 0, driver_epoch: 1 });
    assert_eq!(driver.send(0, 0, &bad, &[], 64)?.status(), Status::BadVersion);
    let zero = Request::Hello(Hello { abi_major: 1, abi_minor: 0, driver_epoch: 0 });
    assert_eq!(driver.send(0, 0, &zero, &[], 64)?.status(), Status::BadRequest);
    let small = Request::Hello(Hello { abi_major: 1, abi_minor: 9, driver_epoch: 1 });
    let answer = driver.send(0, 0, &small, &[], 63)?;
    assert_eq!((answer.status(), answer.response.value), (Status::BufferTooSmall, 64));
    assert_eq!(driver.info(4096)?.status(), Status::NotReady);
    ok(driver.send(0, 0, &small, &[], 64)?);
    ok(driver.info(4096)?);
    Ok(())
}

#[test]
fn info_and_query_say_how_much_room_they_need() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let needed = 96 + 4 * 64;
    let answer = driver.info(needed - 1)?;
    assert_eq!((answer.status(), answer.response.value), (Status::BufferTooSmall, needed));
    assert_eq!(ok(driver.info(needed)?).payload.len() as u64, needed);
    assert_eq!(ok(driver.info(needed + 50)?).payload.len() as u64, needed);
    let base = driver.must_alloc(context, 20 * MIB)?;
    assert_eq!(driver.query(context, base, 0, 31)?.status(), Status::BufferTooSmall);
    let head = ok(driver.query(context, base + 5, 0, 32)?);
    let total = u32::from_le_bytes(head.payload[20..24].try_into()?);
    assert!(total >= 2);
    // One extent at a time covers the allocation.
    let mut covered = 0;
    for first in 0..total {
        let answer = ok(driver.query(context, base, first, 32 + 32)?);
        assert_eq!(u64::from_le_bytes(answer.payload[32..40].try_into()?), base + covered);
        covered += u64::from_le_bytes(answer.payload[40..48].try_into()?);
    }
    assert_eq!(covered, 20 * MIB);
    assert_eq!(driver.query(context, base + 20 * MIB, 0, 64)?.status(), Status::BadAddress);
    Ok(())
}

#[test]
fn advise_is_heard_within_one_live_allocation_and_refused_elsewhere() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let base = driver.must_alloc(context, 20 * MIB)?;
    let all = [Advice::Prefetch, Advice::Cold, Advice::Pin, Advice::Unpin, Advice::PreferGpu { gpu: 3 }];
    for advice in all {
        let answer = ok(driver.advise(context, base + 5, 20 * MIB - 5, advice)?);
        assert_eq!((answer.response.moved, answer.response.value), (0, 0), "{advice:?}");
    }
    for gpu in [4, u32::from(u16::MAX), 1 << 16, u32::MAX] {
        let answer = driver.advise(context, base, 1, Advice::PreferGpu { gpu })?;
        assert_eq!(answer.status(), Status::BadRequest, "GPU {gpu}");
    }
    let other = driver.open()?;
    for (context, address, length, status) in [
        (context, base, 20 * MIB + 1, Status::BadAddress),
        (context, base - 1, 2, Status::BadAddress),
        (context, u64::MAX, 1, Status::BadAddress),
        (context, base, 0, Status::BadLength),
        (other, base, 1, Status::BadAddress),
        (77, base, 1, Status::NoContext),
    ] {
        assert_eq!(driver.advise(context, address, length, Advice::Cold)?.status(), status);
    }
    ok(driver.free(context, base)?);
    assert_eq!(driver.advise(context, base, 1, Advice::Pin)?.status(), Status::BadAddress);
    Ok(())
}

#[test]
fn contexts_are_limited_and_closing_one_frees_its_memory_only() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    let kept = driver.must_alloc(context, 2 * MIB)?;
    let other = driver.open()?;
    driver.must_alloc(other, 10 * MIB)?;
    ok(driver.close(other)?);
    assert_eq!(driver.close(other)?.status(), Status::NoContext);
    daemon.expect_used(2 * MIB)?;
    ok(driver.read(context, kept, 16)?);
    for _ in 1..1024 {
        driver.open()?;
    }
    assert_eq!(driver.open().unwrap_err().to_string(), "TOO_MANY");
    Ok(())
}

#[test]
fn streams_and_fences_answer_by_their_rules() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    ok(driver.fence(context, 1023, false)?);
    ok(driver.fence(context, 7, true)?);
    assert_eq!(driver.fence(context, 1024, false)?.status(), Status::BadStream);
    assert_eq!(driver.fence(77, 0, false)?.status(), Status::NoContext);
    Ok(())
}

#[test]
fn copy_fault_is_transfer_failed_and_the_session_goes_on() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    let base = driver.must_alloc(context, MIB)?;
    let data = bytes(9, MIB as usize);
    daemon.faults.fail_copy(1);
    let answer = driver.write(context, base, &data)?;
    assert_eq!(answer.status(), Status::TransferFailed);
    assert!(answer.response.moved < MIB);
    ok(driver.write(context, base, &data)?);
    assert!(ok(driver.read(context, base, MIB)?).payload == data);
    Ok(())
}

#[test]
fn gpu_that_refuses_shards_is_passed_over() -> Result<()> {
    let (daemon, mut driver, context) = start()?;
    daemon.faults.fail_creates(vram_gpu::GpuId(0), 1);
    let base = driver.must_alloc(context, 6 * MIB)?;
    ok(driver.write(context, base, &bytes(4, 4096))?);
    ok(driver.free(context, base)?);
    daemon.expect_all_memory_back()
}

#[test]
fn response_area_of_forty_bytes_is_enough_and_needed() -> Result<()> {
    let (_daemon, mut driver, context) = start()?;
    let request =
        Request::Fence { all_streams: false }.encode(vram_protocol::Header { tag: 5, context, stream: 0 });
    let answer = driver.send_bytes(2, &request, &[], 0)?;
    assert_eq!(answer.map(|answer| answer.payload.len()), Some(0));
    assert_eq!(RESPONSE_BYTES, 40);
    Ok(())
}
