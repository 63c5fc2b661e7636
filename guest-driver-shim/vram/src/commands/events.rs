//! `vram events`: what happens to the slice's memory, one line for each event, as it happens.

use std::{
    fmt::{self, Display},
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;
use vram::Event;

use super::Context;
use crate::{arguments::Format, size::ByteSize};

/// An event as it is written.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    GpuLost { gpu: u32 },
    DataLost { address: String, bytes: u64 },
    LimitChanged { limit_bytes: u64, guarantee_bytes: u64 },
    Missed { count: u64 },
    Unknown { kind: u32, value: u64, extra: u64 },
}

impl From<Event> for Line {
    fn from(event: Event) -> Self {
        match event {
            Event::GpuLost { gpu } => Self::GpuLost { gpu },
            Event::DataLost { address, len_bytes } => {
                Self::DataLost { address: address.to_string(), bytes: len_bytes }
            }
            Event::LimitChanged { limit_bytes, guarantee_bytes } => {
                Self::LimitChanged { limit_bytes, guarantee_bytes }
            }
            Event::Missed { count } => Self::Missed { count },
            Event::Other { kind, value, extra } => Self::Unknown { kind, value, extra },
            // The library has learned more than this command.
            _ => Self::Unknown { kind: 0, value: 0, extra: 0 },
        }
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GpuLost { gpu } => write!(f, "gpu-lost       GPU {gpu} is gone, and the bytes on it"),
            Self::DataLost { address, bytes } => {
                write!(f, "data-lost      {} from {address} on are damaged, and lost", ByteSize(*bytes))
            }
            Self::LimitChanged { limit_bytes, guarantee_bytes } => write!(
                f,
                "limit-changed  the slice may have {}, of which {} are guaranteed",
                ByteSize(*limit_bytes),
                ByteSize(*guarantee_bytes)
            ),
            Self::Missed { count } => write!(f, "missed         {count} other(s); see vram info"),
            Self::Unknown { kind, value, extra } => write!(f, "kind-{kind}  {value:#x} {extra:#x}"),
        }
    }
}

/// Shows events until there were so many, or so long.
pub(crate) fn events(context: &mut Context<'_>, count: Option<u64>, seconds: Option<f64>) -> Result<()> {
    let device = context.open()?;
    let begin = Instant::now();
    let time = seconds.map(Duration::from_secs_f64);
    let mut left = count;
    while left != Some(0) {
        let timeout = time.map(|time| time.saturating_sub(begin.elapsed()));
        let Some(event) = device.next_event(timeout)? else { break };
        let line = Line::from(event);
        match context.format {
            Format::Text => writeln!(context.out, "{line}")?,
            Format::Json => writeln!(context.out, "{}", serde_json::to_string(&line)?)?,
        }
        context.out.flush()?;
        left = left.map(|left| left.saturating_sub(1));
    }
    Ok(())
}
