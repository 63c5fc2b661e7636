//! What codecs save and how fast they are: `cargo bench -p vram-tier`.
//!
//! One thread, 64 MiB of each kind of content. The first table puts them into compressed RAM with one codec and reads
//! them back: all that happens to a chunk, in one place. The second does the same with the default codec and chunks of
//! different sizes; the third goes to the host tier and to a disk, with and without encryption.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vram_guest_memory::{HostBuffer, HostSpan};
use vram_tier::{
    ChunkedStore, Codec, CodecChoice, CodecConfig, CompressedConfig, DEFAULT_CHUNK_BYTES, DiskConfig,
    HostConfig, HostStore, Store, TierConfig,
};

const REGION_BYTES: usize = 64 << 20;
const ROUNDS: usize = 3;

/// A small generator of random numbers (xorshift64*): the same run each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 + 1.0) / (1u32 << 24) as f32
    }

    /// Normal, by Box and Muller.
    fn normal(&mut self) -> f32 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f32::consts::TAU * self.unit()).cos()
    }
}

fn by_element<const LEN: usize>(mut element: impl FnMut() -> [u8; LEN]) -> Vec<u8> {
    (0..REGION_BYTES / LEN).flat_map(|_| element()).collect()
}

/// A few hundred words, the common ones more often.
fn text(random: &mut Random) -> Vec<u8> {
    let words: Vec<String> = (0..800)
        .map(|_| {
            let len = 2 + random.next() as usize % 9;
            (0..len).map(|_| char::from(b'a' + (random.unit() * random.unit() * 25.0) as u8)).collect()
        })
        .collect();
    let mut bytes = Vec::with_capacity(REGION_BYTES + 16);
    while bytes.len() < REGION_BYTES {
        let unit = random.unit();
        bytes.extend_from_slice(words[(unit * unit * 799.0) as usize].as_bytes());
        bytes.push(if random.next().is_multiple_of(12) { b'\n' } else { b' ' });
    }
    bytes.truncate(REGION_BYTES);
    bytes
}

fn contents() -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let random = &mut random;
    vec![
        (
            "bf16 normal",
            by_element(|| {
                let [_, _, low, high] = (random.normal() * 0.02).to_le_bytes();
                [low, high]
            }),
        ),
        ("fp32 normal", by_element(|| (random.normal() * 0.02).to_le_bytes())),
        ("int8 normal", by_element(|| [(random.normal() * 24.0).clamp(-128.0, 127.0) as i8 as u8])),
        (
            "bf16 relu",
            by_element(|| {
                let [_, _, low, high] = random.normal().max(0.0).to_le_bytes();
                [low, high]
            }),
        ),
        ("text", text(random)),
        ("zeros", vec![0; REGION_BYTES]),
        ("random", by_element(|| random.next().to_le_bytes())),
    ]
}

fn memory(bytes: &[u8]) -> HostSpan {
    let span = HostBuffer::new(bytes.len()).expect("memory for a region").span();
    span.write_from(bytes);
    span
}

/// Stores and reads a region, and the ratio and the speeds of the best round.
fn round_trip(store: &dyn Store, from: &HostSpan, to: &HostSpan) -> (f64, f64, f64) {
    let (mut put, mut get, mut stored_bytes) = (Duration::MAX, Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let stored = store.put(from).expect("there is room");
        put = put.min(started.elapsed());
        stored_bytes = store.meter().stored_bytes;
        let started = Instant::now();
        store.get(&stored, 0, to).expect("what was stored is there");
        get = get.min(started.elapsed());
        store.remove(stored).expect("it goes away");
    }
    let mb_per_s = |time: Duration| from.len_bytes() as f64 / time.as_secs_f64() / 1e6;
    (from.len_bytes() as f64 / stored_bytes as f64, mb_per_s(put), mb_per_s(get))
}

fn compressed(choice: CodecChoice, level: Option<i32>, chunk_bytes: u32) -> ChunkedStore {
    let codec = CodecConfig { choice, level, always: true };
    let config = CompressedConfig { codec, chunk_bytes, min_ratio: 0.1, ..CompressedConfig::new(None) };
    ChunkedStore::open(&TierConfig::Compressed(config)).expect("a valid configuration")
}

fn row(names: &[&str], (ratio, put, get): (f64, f64, f64)) {
    print!("|");
    names.iter().for_each(|name| print!(" {name} |"));
    println!(" {ratio:.2} | {put:.0} | {get:.0} |");
}

fn codecs(contents: &[(&str, HostSpan)], to: &HostSpan) {
    let codecs = [
        ("none", CodecChoice::None, None),
        ("lz4", CodecChoice::Only(Codec::Lz4), None),
        ("zstd -3", CodecChoice::Only(Codec::Zstd), Some(-3)),
        ("zstd 1", CodecChoice::Only(Codec::Zstd), Some(1)),
        ("zstd 3", CodecChoice::Only(Codec::Zstd), Some(3)),
        ("zlib 1", CodecChoice::Only(Codec::Zlib), Some(1)),
        ("auto", CodecChoice::Auto, None),
    ];
    println!("\n| content | codec | ratio | in, MB/s | out, MB/s |\n|---|---|---|---|---|");
    for (name, from) in contents {
        for (codec, choice, level) in codecs {
            let store = compressed(choice, level, DEFAULT_CHUNK_BYTES);
            row(&[name, codec], round_trip(&store, from, to));
        }
    }
}

fn chunk_sizes(contents: &[(&str, HostSpan)], to: &HostSpan) {
    println!("\n| content | chunk | ratio | in, MB/s | out, MB/s |\n|---|---|---|---|---|");
    for (name, from) in contents.iter().filter(|(name, _)| *name != "zeros") {
        for kib in [64, 256, 1024, 4096] {
            let store = compressed(CodecChoice::Auto, None, kib << 10);
            row(&[name, &format!("{kib} KiB")], round_trip(&store, from, to));
        }
    }
}

/// The host tier, and the disk tier over a folder: the one named by `VRAM_BENCH_DIR`, or the system's for
/// temporary files.
fn stores(contents: &[(&str, HostSpan)], to: &HostSpan) {
    let dir = std::env::var_os("VRAM_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let bytes = 2 * REGION_BYTES as u64;
    let host = HostConfig { bytes, slot_bytes: REGION_BYTES as u64, preallocate: true, huge_pages: false };
    let host = HostStore::open(&host).expect("memory for two slots");
    let disk = |encrypt, choice, always| {
        let codec = CodecConfig { choice, always, level: None };
        let config = DiskConfig { encrypt, codec, ..DiskConfig::new(&dir, bytes) };
        ChunkedStore::open(&TierConfig::Disk(config)).expect("room for a file")
    };
    println!("\n| content | store | ratio | in, MB/s | out, MB/s |\n|---|---|---|---|---|");
    for (name, from) in contents.iter().filter(|(name, _)| ["bf16 normal", "random"].contains(name)) {
        row(&[name, "host"], round_trip(&host, from, to));
        row(&[name, "disk, plain, raw"], round_trip(&disk(false, CodecChoice::None, false), from, to));
        row(&[name, "disk, encrypted, raw"], round_trip(&disk(true, CodecChoice::None, false), from, to));
        row(&[name, "disk, encrypted, auto"], round_trip(&disk(true, CodecChoice::Auto, false), from, to));
        row(&[name, "disk, encrypted, always"], round_trip(&disk(true, CodecChoice::Auto, true), from, to));
    }
    if let Some(link) = disk(true, CodecChoice::Auto, false).link_speed() {
        println!("\nThe disk's own speed: {:.0} MB/s in, {:.0} MB/s out", link.write / 1e6, link.read / 1e6);
    }
}

fn main() {
    let contents: Vec<_> = contents().into_iter().map(|(name, bytes)| (name, memory(&bytes))).collect();
    let to = memory(&vec![1; REGION_BYTES]);
    codecs(&contents, &to);
    chunk_sizes(&contents, &to);
    stores(&contents, &to);
}
