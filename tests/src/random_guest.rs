//! A guest that does random things against a plain model of what its memory holds.

use anyhow::{Result, ensure};
use vram_protocol::Status;
use vram_testkit::Driver;

const MIB: u64 = 1 << 20;

/// xorshift: the same numbers every run for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

struct Held {
    context: u32,
    base: u64,
    bytes: Vec<u8>,
}

/// A range inside an allocation.
fn range(random: &mut Random, held: &Held) -> (usize, usize) {
    let size = held.bytes.len() as u64;
    let start = random.below(size);
    let len = 1 + random.below((size - start).min(MIB));
    (start as usize, len as usize)
}

fn ok(answer: &vram_testkit::Answer, what: &str) -> Result<()> {
    ensure!(answer.status() == Status::Ok, "{what}: {}", answer.status());
    Ok(())
}

fn one_step(
    driver: &mut Driver,
    random: &mut Random,
    contexts: &mut [u32],
    held: &mut Vec<Held>,
) -> Result<()> {
    match random.below(20) {
        0..=3 => {
            let context = contexts[random.below(contexts.len() as u64) as usize];
            let length = 1 + random.below(5 * MIB);
            let answer = driver.alloc(context, length, 0)?;
            match answer.status() {
                Status::Ok => {
                    held.push(Held { context, base: answer.response.value, bytes: vec![0; length as usize] });
                }
                Status::OverLimit | Status::OutOfMemory => {}
                other => anyhow::bail!("alloc: {other}"),
            }
        }
        4 | 5 if !held.is_empty() => {
            let gone = held.swap_remove(random.below(held.len() as u64) as usize);
            ok(&driver.free(gone.context, gone.base)?, "free")?;
            let again = driver.read(gone.context, gone.base, 1)?.status();
            ensure!(again == Status::BadAddress, "freed memory was read: {again}");
        }
        6..=9 if !held.is_empty() => {
            let at = random.below(held.len() as u64) as usize;
            let (start, len) = range(random, &held[at]);
            let seed = random.next();
            let data: Vec<u8> = (0..len).map(|i| (seed >> (i % 56)) as u8 ^ i as u8).collect();
            let target = &mut held[at];
            ok(&driver.write(target.context, target.base + start as u64, &data)?, "write")?;
            target.bytes[start..start + len].copy_from_slice(&data);
        }
        10..=13 if !held.is_empty() => {
            let source = &held[random.below(held.len() as u64) as usize];
            let (start, len) = range(random, source);
            let answer = driver.read(source.context, source.base + start as u64, len as u64)?;
            ok(&answer, "read")?;
            ensure!(answer.payload == source.bytes[start..start + len], "bytes differ");
        }
        14 | 15 if held.len() > 1 => {
            let (a, b) = (random.below(held.len() as u64) as usize, random.below(held.len() as u64) as usize);
            if a == b || held[a].context != held[b].context {
                return Ok(());
            }
            let len = 1 + random.below(held[a].bytes.len().min(held[b].bytes.len()) as u64) as usize;
            let (to, from) = (held[a].bytes.len() - len, held[b].bytes.len() - len);
            let answer = driver.copy(
                held[a].context,
                held[a].base + to as u64,
                held[b].base + from as u64,
                len as u64,
            )?;
            ok(&answer, "copy")?;
            let data = held[b].bytes[from..].to_vec();
            held[a].bytes[to..].copy_from_slice(&data);
        }
        16 if !held.is_empty() => {
            let at = random.below(held.len() as u64) as usize;
            let (start, len) = range(random, &held[at]);
            let byte = random.next() as u8;
            let target = &mut held[at];
            let address = target.base + start as u64;
            ok(&driver.fill(target.context, address, len as u64, u32::from(byte), 1)?, "fill")?;
            target.bytes[start..start + len].fill(byte);
        }
        17 => {
            let at = random.below(contexts.len() as u64) as usize;
            ok(&driver.close(contexts[at])?, "close")?;
            held.retain(|one| one.context != contexts[at]);
            contexts[at] = driver.open()?;
        }
        18 => {
            let index = random.below(4) as usize;
            let base = driver.vm.stop_ring(index)?;
            driver.vm.resume_ring(index, base)?;
        }
        _ => {
            ok(&driver.fence(contexts[0], 0, true)?, "fence")?;
            ok(&driver.info(4096)?, "info")?;
        }
    }
    Ok(())
}

/// A guest of its own random sequence, which goes on over any number of lives of its VM.
pub struct RandomGuest(Random);

impl RandomGuest {
    /// The same guest every time for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// One life: opens contexts, does so many random things, and leaves everything as it is. Fails at the first byte
    /// or status that the model does not expect.
    pub fn live(&mut self, driver: &mut Driver, steps: u64) -> Result<()> {
        let mut contexts = vec![driver.open()?, driver.open()?];
        let mut held = Vec::new();
        for _ in 0..steps {
            one_step(driver, &mut self.0, &mut contexts, &mut held)?;
        }
        Ok(())
    }
}
