//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    holder::{Digest, Handle, Name},
    size::{ByteSize, SizeError},
};

/// Most streams of a benchmark.
const MAX_STREAMS: u32 = 64;
/// Most seconds for each of its lines.
const MAX_SECONDS: f64 = 3600.0;
/// Its largest transfer; each stream holds so much of this machine's memory.
const MAX_BLOCK: ByteSize = ByteSize(1 << 30);

/// GPU memory of the pool, for this virtual machine.
#[derive(Debug, Parser)]
#[command(name = "vram", version, arg_required_else_help = true, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Device node
    #[arg(long, global = true, env = vram::DEVICE_VARIABLE, default_value = vram::DEFAULT_DEVICE)]
    pub(crate) device: PathBuf,

    /// How results are written
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Sizes are bytes, or a number with KiB, MiB, GiB or TiB. Rates are MiB/s: 2^20 bytes in a second.
What `put` allocates is kept by a small holder process until it is freed; HANDLE is its name or its address.
Exit status: 0 done, 1 failed or different, 2 wrong usage.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the slice and the GPUs
    Info,
    /// Allocate memory and fill it from a file
    Put(Put),
    /// Write an allocation to a file
    Get {
        handle: Handle,
        /// File, replaced when all is there; - for standard output
        file: PathBuf,
    },
    /// Allocate memory and copy an allocation to it, on the device
    Copy {
        source: Handle,
        /// Name of the new one; without it, one is made up
        name: Option<Name>,
        /// Bytes, a power of two up to 1 GiB
        #[arg(long, default_value = "0", allow_hyphen_values = true)]
        alignment: ByteSize,
    },
    /// Fill an allocation with a pattern, on the device
    Fill(Fill),
    /// Tell the host how an allocation will be used
    Advise {
        handle: Handle,
        #[command(subcommand)]
        advice: AdviceArgument,
    },
    /// Read an allocation back and compare it
    Verify {
        handle: Handle,
        /// With this file; - for standard input
        #[arg(long, conflicts_with = "sha256")]
        file: Option<PathBuf>,
        /// With this digest; without either, with that of what was put
        #[arg(long)]
        sha256: Option<Digest>,
    },
    /// Free an allocation
    Free {
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        handle: Option<Handle>,
        /// Free every one
        #[arg(long)]
        all: bool,
    },
    /// List what is held
    List,
    /// Show what happens to the slice's memory, as it happens
    Events {
        /// End after so many; without it, never
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        /// End after so long
        #[arg(long, value_parser = seconds, allow_hyphen_values = true)]
        seconds: Option<f64>,
    },
    /// Free everything and end the holder
    Release {
        /// Also what other commands are using
        #[arg(long)]
        force: bool,
    },
    /// Measure throughput and latency
    Bench(Bench),
    /// Hold allocations for other commands; started by itself when needed
    Hold {
        /// Leave the terminal, and close standard error when ready
        #[arg(long)]
        background: bool,
    },
    /// Run steps on the bare device, in one context of its own
    #[command(hide = true)]
    Raw {
        /// alloc LEN [ALIGN], free A, write A HEX, read A LEN, copy DST SRC LEN, fill A LEN PATTERN [WIDTH], query A,
        /// advise A LEN prefetch|cold|pin|unpin|gpu N, fence [all], stream N, sleep MS; an address is 0x… or @N[+OFFSET], with N the number of the alloc
        #[arg(required = true)]
        steps: Vec<String>,
    },
}

/// What the host is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum AdviceArgument {
    /// Needed soon: bring it to the GPUs
    Prefetch,
    /// Not needed soon
    Cold,
    /// Keep it on the GPUs, within the slice's guarantee
    Pin,
    /// It may leave the GPUs again
    Unpin,
    /// Best on one GPU
    Gpu {
        /// Its number, as in info
        number: u32,
    },
}

impl From<AdviceArgument> for vram::Advice {
    fn from(advice: AdviceArgument) -> Self {
        match advice {
            AdviceArgument::Prefetch => Self::Prefetch,
            AdviceArgument::Cold => Self::Cold,
            AdviceArgument::Pin => Self::Pin,
            AdviceArgument::Unpin => Self::Unpin,
            AdviceArgument::Gpu { number } => Self::PreferGpu(number),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// File or block device; - for standard input
    pub(crate) file: PathBuf,
    /// Name; without it, one is made from the file's
    #[arg(long)]
    pub(crate) name: Option<Name>,
    /// Bytes to put; needed when the file's size cannot be known, as of a pipe
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<ByteSize>,
    /// Bytes, a power of two up to 1 GiB
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(crate) alignment: ByteSize,
}

#[derive(Debug, Args)]
pub(crate) struct Fill {
    pub(crate) handle: Handle,
    /// Number, decimal or 0x…
    #[arg(long, default_value = "0", value_parser = number, allow_hyphen_values = true)]
    pub(crate) pattern: u32,
    /// Bytes of the pattern
    #[arg(long, value_enum, default_value_t = Width::One)]
    pub(crate) width: Width,
}

/// Bytes of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Width {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    #[value(name = "4")]
    Four,
}

impl Width {
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Memory for each of source and destination
    #[arg(long, default_value = "64MiB", value_parser = some_bytes, allow_hyphen_values = true)]
    pub(crate) size: ByteSize,
    /// Bytes of one transfer, at most 1 GiB
    #[arg(long, default_value = "1MiB", value_parser = block, allow_hyphen_values = true)]
    pub(crate) block: ByteSize,
    /// Threads, each on a stream of its own
    #[arg(long, default_value_t = 1, value_parser = streams, allow_hyphen_values = true)]
    pub(crate) streams: u32,
    /// Seconds for each line of the table
    #[arg(long, default_value_t = 2.0, value_parser = seconds, allow_hyphen_values = true)]
    pub(crate) seconds: f64,
}

/// A number, decimal or hexadecimal.
pub(crate) fn number(text: &str) -> Result<u32, NumberError> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().ok_or(NumberError::Pattern)
}

/// Why a number is none, or not one that fits.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NumberError {
    #[error("A pattern is a number from 0 to 0xffffffff, decimal or 0x…")]
    Pattern,
    #[error("Streams are a number from 1 to {MAX_STREAMS}")]
    Streams,
    #[error("Seconds are a number, more than 0 and at most {MAX_SECONDS}")]
    Seconds,
    #[error("A size is more than 0 here")]
    NoBytes,
    #[error("A block is at most {MAX_BLOCK}")]
    Block,
    #[error(transparent)]
    Size(#[from] SizeError),
}

fn some_bytes(text: &str) -> Result<ByteSize, NumberError> {
    match text.parse()? {
        ByteSize(0) => Err(NumberError::NoBytes),
        size => Ok(size),
    }
}

fn block(text: &str) -> Result<ByteSize, NumberError> {
    let block = some_bytes(text)?;
    if block.0 > MAX_BLOCK.0 { Err(NumberError::Block) } else { Ok(block) }
}

fn streams(text: &str) -> Result<u32, NumberError> {
    text.parse().ok().filter(|streams| (1..=MAX_STREAMS).contains(streams)).ok_or(NumberError::Streams)
}

fn seconds(text: &str) -> Result<f64, NumberError> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_SECONDS);
    seconds.ok_or(NumberError::Seconds)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    fn parse(line: &str) -> Result<Command, ErrorKind> {
        Arguments::try_parse_from(line.split_whitespace())
            .map(|arguments| arguments.command)
            .map_err(|error| error.kind())
    }

    #[test]
    fn definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn put_with_sizes_is_read() {
        let Ok(Command::Put(put)) = parse("vram put - --size 1.5GiB --alignment 2MiB --name w") else {
            panic!("not a put")
        };

        assert_eq!(put.size, Some(ByteSize(3 << 29)));
        assert_eq!(put.alignment, ByteSize(2 << 20));
    }

    #[test]
    fn fill_with_hexadecimal_pattern_and_width_is_read() {
        let Ok(Command::Fill(fill)) = parse("vram fill 0x7f00 --pattern 0xdeadbeef --width 4") else {
            panic!("not a fill")
        };

        assert_eq!((fill.pattern, fill.width), (0xdead_beef, Width::Four));
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for line in [
            "vram put",
            "vram put f --size 5MB",
            "vram put f --name a/b",
            "vram fill x --width 3",
            "vram fill x --pattern 0x1ffffffff",
            "vram fill x --pattern -1",
            "vram put f --size -1",
            "vram put f --alignment -1",
            "vram free",
            "vram free x --all",
            "vram verify x --file f --sha256 00",
            "vram verify x --sha256 00",
            "vram advise x",
            "vram advise x hot",
            "vram advise x gpu",
            "vram advise x pin 1",
            "vram events --count 0",
            "vram events --seconds -1",
            "vram bench --streams 0",
            "vram bench --seconds nan",
            "vram bench --seconds 0",
            "vram raw",
            "vram info -o xml",
            "vram frobnicate",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn bench_numbers_that_do_not_fit_say_which_do() {
        let cases = [
            ("--size 0", "more than 0"),
            ("--size -1", "negative"),
            ("--size -5MiB", "negative"),
            ("--size lots", "a number of bytes"),
            ("--size 99999999TiB", "larger than any memory"),
            ("--block 0", "more than 0"),
            ("--block -1", "negative"),
            ("--block 2GiB", "at most 1 GiB"),
            ("--block x", "a number of bytes"),
            ("--streams 0", "from 1 to 64"),
            ("--streams -1", "from 1 to 64"),
            ("--streams 65", "from 1 to 64"),
            ("--streams 99999999999999999999", "from 1 to 64"),
            ("--streams many", "from 1 to 64"),
            ("--seconds 0", "more than 0 and at most 3600"),
            ("--seconds -1", "more than 0 and at most 3600"),
            ("--seconds 1e400", "more than 0 and at most 3600"),
            ("--seconds nan", "more than 0 and at most 3600"),
            ("--seconds soon", "more than 0 and at most 3600"),
        ];
        for (option, said) in cases {
            let line = format!("vram bench {option}");
            let error = Arguments::try_parse_from(line.split_whitespace()).unwrap_err();

            assert_eq!(error.kind(), ErrorKind::ValueValidation, "{option}");
            let (option, value) = option.split_once(' ').unwrap();
            let error = error.to_string();
            assert!(error.contains(said) && error.contains(option) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn help_does_not_show_raw() {
        let help = Arguments::command().render_help().to_string();

        assert!(help.contains("put") && !help.contains("raw"), "{help}");
    }
}
