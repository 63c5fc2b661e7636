//! `vram raw`: steps on the bare device, for tests and debugging. One context, which ends with the command.
//!
//! Each step prints one line: its number, `ok` and a result, or the name and number of the errno and the message. A
//! step that fails does not keep the next from running.

use std::{
    str::{FromStr, SplitWhitespace},
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use vram::{Advice, Device, DeviceAddress, Pattern, StreamId};

use super::{Context, StepsFailed, UsageError, bytes::pattern};
use crate::{
    arguments::{Width, number},
    size::ByteSize,
};

/// Most bytes that one `read` prints.
const MAX_READ_BYTES: u64 = 16 << 20;

/// An address, bare or relative to one that an earlier step allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Address(u64),
    Allocation { number: usize, offset_bytes: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Alloc { len_bytes: u64, alignment_bytes: u64 },
    Free(Place),
    Write(Place, Vec<u8>),
    Read(Place, u64),
    Copy { destination: Place, source: Place, len_bytes: u64 },
    Fill { place: Place, len_bytes: u64, pattern: Pattern },
    Query(Place),
    Advise(Place, u64, Advice),
    Fence { all: bool },
    Stream(u32),
    Sleep(Duration),
}

/// Runs the steps. Fails if one of them did.
pub(crate) fn raw(context: &mut Context<'_>, steps: &[String]) -> Result<()> {
    let parsed: Vec<Step> = steps.iter().map(|step| parse(step)).collect::<Result<_, _>>()?;
    let mut machine = Machine { device: context.open()?, stream: StreamId(0), allocated: Vec::new() };
    let mut failed = 0;
    for (number, (step, text)) in parsed.iter().zip(steps).enumerate() {
        match machine.run(step) {
            Ok(result) => writeln!(context.out, "{number} ok {result}")?,
            Err(StepError::Device(error)) => {
                failed += 1;
                let errno = nix::Error::from_raw(error.errno());
                let moved = error.attempt().map_or(0, |attempt| attempt.moved_bytes);
                writeln!(context.out, "{number} error {errno:?} ({}) moved {moved}: {error}", error.errno())?;
            }
            Err(StepError::NoSuchAllocation) => {
                failed += 1;
                writeln!(context.out, "{number} error: {text:?} names an allocation that was not made")?;
            }
        }
        // Whoever watches wants to know before a step that sleeps.
        context.out.flush()?;
    }
    if failed > 0 {
        bail!(StepsFailed { failed, steps: steps.len() });
    }
    Ok(())
}

enum StepError {
    Device(vram::Error),
    NoSuchAllocation,
}

impl From<vram::Error> for StepError {
    fn from(error: vram::Error) -> Self {
        Self::Device(error)
    }
}

struct Machine {
    device: Device,
    stream: StreamId,
    /// What each `alloc` returned, `None` where it failed.
    allocated: Vec<Option<DeviceAddress>>,
}

impl Machine {
    fn run(&mut self, step: &Step) -> Result<String, StepError> {
        let stream = self.device.stream(self.stream);
        Ok(match step {
            Step::Alloc { len_bytes, alignment_bytes } => {
                let allocated = self.device.allocate_raw(*len_bytes, *alignment_bytes);
                self.allocated.push(allocated.as_ref().ok().copied());
                allocated?.to_string()
            }
            Step::Free(place) => {
                self.device.free(self.address(*place)?)?;
                "freed".to_owned()
            }
            Step::Write(place, bytes) => {
                stream.write(self.address(*place)?, bytes)?;
                format!("{} bytes", bytes.len())
            }
            Step::Read(place, len_bytes) => {
                let mut bytes = vec![0; usize::try_from(*len_bytes).unwrap_or(0)];
                stream.read(self.address(*place)?, &mut bytes)?;
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            Step::Copy { destination, source, len_bytes } => {
                stream.copy(self.address(*destination)?, self.address(*source)?, *len_bytes)?;
                format!("{len_bytes} bytes")
            }
            Step::Fill { place, len_bytes, pattern } => {
                stream.fill(self.address(*place)?, *len_bytes, *pattern)?;
                format!("{len_bytes} bytes")
            }
            Step::Query(place) => {
                let placement = self.device.query(self.address(*place)?)?;
                let mut text = format!("{} {} bytes", placement.base, placement.len_bytes);
                for extent in placement.extents {
                    let gpu = extent.gpu.map_or_else(|| "none".to_owned(), |gpu| gpu.to_string());
                    text +=
                        &format!(" [{} {} gpu {gpu} {:?}]", extent.address, extent.len_bytes, extent.tier);
                }
                text
            }
            Step::Advise(place, len_bytes, advice) => {
                self.device.advise(self.address(*place)?, *len_bytes, *advice)?;
                "heard".to_owned()
            }
            Step::Fence { all: true } => {
                self.device.fence_all()?;
                "fenced".to_owned()
            }
            Step::Fence { all: false } => {
                stream.fence()?;
                "fenced".to_owned()
            }
            Step::Stream(number) => {
                self.stream = StreamId(*number);
                self.stream.to_string()
            }
            Step::Sleep(time) => {
                thread::sleep(*time);
                "slept".to_owned()
            }
        })
    }

    fn address(&self, place: Place) -> Result<DeviceAddress, StepError> {
        match place {
            Place::Address(address) => Ok(DeviceAddress(address)),
            Place::Allocation { number, offset_bytes } => self
                .allocated
                .get(number)
                .copied()
                .flatten()
                // Wrapping, so that tests can name addresses before an allocation.
                .map(|base| DeviceAddress(base.0.wrapping_add(offset_bytes)))
                .ok_or(StepError::NoSuchAllocation),
        }
    }
}

fn parse(text: &str) -> Result<Step, UsageError> {
    parse_words(text).map_err(|problem| UsageError::Step { step: text.to_owned(), problem })
}

fn parse_words(text: &str) -> Result<Step, &'static str> {
    let mut words = text.split_whitespace();
    let words = &mut words;
    let step = match words.next().ok_or("it is empty")? {
        "alloc" => Step::Alloc { len_bytes: size(words)?, alignment_bytes: size_or(words, 0)? },
        "free" => Step::Free(place(words)?),
        "write" => Step::Write(place(words)?, hex(words.next().ok_or("the bytes are missing")?)?),
        "read" => match (place(words)?, size(words)?) {
            (_, len_bytes) if len_bytes > MAX_READ_BYTES => return Err("at most 16 MiB can be printed"),
            (place, len_bytes) => Step::Read(place, len_bytes),
        },
        "copy" => Step::Copy { destination: place(words)?, source: place(words)?, len_bytes: size(words)? },
        "fill" => {
            let (place, len_bytes) = (place(words)?, size(words)?);
            let value = number(words.next().ok_or("the pattern is missing")?)
                .ok()
                .ok_or("the pattern is no number")?;
            let width = match words.next() {
                None | Some("1") => Width::One,
                Some("2") => Width::Two,
                Some("4") => Width::Four,
                Some(_) => return Err("the width is 1, 2 or 4"),
            };
            let pattern = pattern(value, width).ok().ok_or("the pattern does not fit in its width")?;
            Step::Fill { place, len_bytes, pattern }
        }
        "query" => Step::Query(place(words)?),
        "advise" => Step::Advise(place(words)?, size(words)?, advice(words)?),
        "fence" => match words.next() {
            None => Step::Fence { all: false },
            Some("all") => Step::Fence { all: true },
            Some(_) => return Err("fence takes nothing or all"),
        },
        "stream" => Step::Stream(parsed(words, "the stream is missing or no number")?),
        "sleep" => {
            Step::Sleep(Duration::from_millis(parsed(words, "the milliseconds are missing or no number")?))
        }
        _ => return Err("there is no such step; see vram raw --help"),
    };
    if words.next().is_some() { Err("there is something behind its end") } else { Ok(step) }
}

fn advice(words: &mut SplitWhitespace<'_>) -> Result<Advice, &'static str> {
    Ok(match words.next().ok_or("the advice is missing")? {
        "prefetch" => Advice::Prefetch,
        "cold" => Advice::Cold,
        "pin" => Advice::Pin,
        "unpin" => Advice::Unpin,
        "gpu" => Advice::PreferGpu(parsed(words, "the GPU is missing or no number")?),
        _ => return Err("the advice is prefetch, cold, pin, unpin or gpu N"),
    })
}

fn parsed<T: FromStr>(words: &mut SplitWhitespace<'_>, problem: &'static str) -> Result<T, &'static str> {
    words.next().and_then(|word| word.parse().ok()).ok_or(problem)
}

fn size(words: &mut SplitWhitespace<'_>) -> Result<u64, &'static str> {
    parsed(words, "a length is missing or no size").map(|size: ByteSize| size.0)
}

fn size_or(words: &mut SplitWhitespace<'_>, default: u64) -> Result<u64, &'static str> {
    match words.next() {
        None => Ok(default),
        Some(word) => word.parse().map(|size: ByteSize| size.0).ok().ok_or("the alignment is no size"),
    }
}

/// `0x…`, `@N`, `@N+OFFSET` or `@N-OFFSET`.
fn place(words: &mut SplitWhitespace<'_>) -> Result<Place, &'static str> {
    const PROBLEM: &str = "an address is missing, or neither 0x… nor @N[+OFFSET]";
    let word = words.next().ok_or(PROBLEM)?;
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map(Place::Address).ok().ok_or(PROBLEM);
    }
    let word = word.strip_prefix('@').ok_or(PROBLEM)?;
    let split = word.find(['+', '-']).unwrap_or(word.len());
    let (number, offset) = word.split_at(split);
    let number = number.parse().ok().ok_or(PROBLEM)?;
    let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0).ok().ok_or(PROBLEM);
    let offset_bytes = match offset.split_at_checked(1) {
        Some(("+", text)) => bytes(text)?,
        Some((_, text)) => bytes(text)?.wrapping_neg(),
        None => 0,
    };
    Ok(Place::Allocation { number, offset_bytes })
}

fn hex(text: &str) -> Result<Vec<u8>, &'static str> {
    const PROBLEM: &str = "bytes are an even number of hexadecimal digits";
    if !text.len().is_multiple_of(2) || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(PROBLEM);
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or(PROBLEM)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT0: Place = Place::Allocation { number: 0, offset_bytes: 0 };

    #[test]
    fn step_of_each_kind_is_read() {
        for (text, step) in [
            ("alloc 4KiB", Step::Alloc { len_bytes: 4096, alignment_bytes: 0 }),
            ("alloc 1 2MiB", Step::Alloc { len_bytes: 1, alignment_bytes: 2 << 20 }),
            ("free 0x7f00", Step::Free(Place::Address(0x7f00))),
            ("write @0 deadBEEF", Step::Write(AT0, vec![0xde, 0xad, 0xbe, 0xef])),
            ("read @2+1KiB 4", Step::Read(Place::Allocation { number: 2, offset_bytes: 1024 }, 4)),
            ("read @0-1 1", Step::Read(Place::Allocation { number: 0, offset_bytes: u64::MAX }, 1)),
            ("copy @0 0x10 5", Step::Copy { destination: AT0, source: Place::Address(16), len_bytes: 5 }),
            ("fill @0 8 0xab", Step::Fill { place: AT0, len_bytes: 8, pattern: Pattern::U8(0xab) }),
            ("fill @0 8 0xabcd 2", Step::Fill { place: AT0, len_bytes: 8, pattern: Pattern::U16(0xabcd) }),
            ("query @0", Step::Query(AT0)),
            ("advise @0 4KiB cold", Step::Advise(AT0, 4096, Advice::Cold)),
            ("advise 0x10 1 gpu 3", Step::Advise(Place::Address(16), 1, Advice::PreferGpu(3))),
            ("fence", Step::Fence { all: false }),
            ("fence all", Step::Fence { all: true }),
            ("stream 3", Step::Stream(3)),
            ("sleep 10", Step::Sleep(Duration::from_millis(10))),
        ] {
            assert_eq!(parse(text).ok(), Some(step), "{text}");
        }
    }

    #[test]
    fn step_that_makes_no_sense_is_wrong_usage() {
        for text in [
            "",
            "explode",
            "alloc",
            "alloc x",
            "alloc 1 2 3",
            "write @0 abc",
            "write @0",
            "read 5 5",
            "read @0 1TiB",
            "fill @0 8 256",
            "fill @0 8 1 3",
            "fence x",
            "advise @0 1",
            "advise @0 1 hot",
            "advise @0 1 gpu",
            "advise @0 1 pin 3",
            "stream -1",
        ] {
            assert!(matches!(parse(text), Err(UsageError::Step { .. })), "{text}");
        }
    }

    proptest! {
        #[test]
        fn step_of_any_text_does_not_panic(text in "(alloc|read|write|fill|copy)? ?[@x0-9a-f+ \u{e9}-]{0,20}") {
            let _ = parse(&text);
        }
    }
}
