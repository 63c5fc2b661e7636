//! The guest ABI is written three times: in Rust, in C and in words. All three say the same.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use vram_protocol::{Opcode, QueueKind, Status, layouts};

use crate::contract::{self, Contract};
use crate::finding::Report;
use crate::header::{self, Names};
use crate::workspace::Workspace;

const HEADER: &str = "guest-driver-shim/include/virtio_vram.h";
const DOCUMENT: &str = "docs/protocol.md";
const RUST: &str = "crates/protocol/src";

/// Layouts and numbers, wherever they were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Abi {
    pub(crate) constants: BTreeMap<String, u64>,
    pub(crate) structures: BTreeMap<String, Structure>,
}

/// A structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    /// Bytes, where they are stated.
    pub(crate) size: Option<usize>,
    /// Fields in order.
    pub(crate) fields: Vec<FieldPlace>,
}

/// Where a field lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldPlace {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// The constants of `vram-protocol` under their names in the C header.
macro_rules! constants {
    ($($name:ident)*) => {
        [$((stringify!($name), u64::from_constant(vram_protocol::$name)),)*]
    };
}

/// Numbers of any width as the widest.
trait FromConstant<T> {
    fn from_constant(value: T) -> u64;
}

impl<T: TryInto<u64>> FromConstant<T> for u64 {
    fn from_constant(value: T) -> u64 {
        // No constant is negative or wider than 64 bits; a wrong one would differ from the header's.
        value.try_into().unwrap_or(u64::MAX)
    }
}

fn constants() -> Vec<(&'static str, u64)> {
    constants![
        CONFIG_MAGIC ABI_MAJOR ABI_MINOR VIRTIO_ID_DEFAULT VIRTIO_ID_ALTERNATE
        QUEUE_CONTROL QUEUE_EVENT QUEUE_FIRST_REQUEST QUEUES_MIN
        CONFIG_BYTES REQUEST_BYTES RESPONSE_BYTES EVENT_BYTES
        MAX_SEGMENTS MAX_TRANSFER_BYTES MIN_ALIGNMENT MAX_ALIGNMENT MAX_CONTEXTS MAX_ALLOCATIONS MAX_STREAMS
        FENCE_ALL_STREAMS DEVICE_SIMULATED DEVICE_RESUMED GPU_HOME GPU_NONE
        TIER_GPU TIER_HOST TIER_COMPRESSED TIER_DISK TIER_REMOTE TIER_DAMAGED TIER_LOST
        ADVICE_PREFETCH ADVICE_COLD ADVICE_PIN ADVICE_UNPIN ADVICE_PREFER_GPU
        EVENT_GPU_LOST EVENT_DATA_LOST EVENT_LIMIT_CHANGED EVENT_MISSED
    ]
    .to_vec()
}

/// The document's table of limits: the words of a row, and what must stand beside them; `None` where that is no
/// constant of the ABI.
fn limits() -> Vec<(&'static str, Option<String>)> {
    use vram_protocol as p;
    let number = |value: u32| Some(value.to_string());
    vec![
        ("queue size", None),
        ("data descriptors in a chain", number(p::MAX_SEGMENTS)),
        ("bytes of one WRITE or READ", Some(size(p::MAX_TRANSFER_BYTES))),
        ("bytes of one COPY or FILL", None),
        ("contexts of a session", number(p::MAX_CONTEXTS)),
        ("allocations of a session", number(p::MAX_ALLOCATIONS)),
        ("streams of a context", number(p::MAX_STREAMS)),
        ("alignment of an ALLOC", Some(format!("{} to {}", p::MIN_ALIGNMENT, size(p::MAX_ALIGNMENT)))),
    ]
}

/// Fields whose meaning states a constant.
fn stated() -> Vec<(&'static str, &'static str, String)> {
    use vram_protocol as p;
    vec![
        ("virtio_vram_config", "magic", format!("{:#x}", p::CONFIG_MAGIC)),
        ("virtio_vram_config", "abi_major", p::ABI_MAJOR.to_string()),
        ("virtio_vram_config", "abi_minor", p::ABI_MINOR.to_string()),
        ("virtio_vram_config", "max_segments", p::MAX_SEGMENTS.to_string()),
        ("virtio_vram_config", "max_transfer_bytes", p::MAX_TRANSFER_BYTES.to_string()),
        ("virtio_vram_request", "stream", p::MAX_STREAMS.to_string()),
        ("virtio_vram_hello_reply", "abi_major", p::ABI_MAJOR.to_string()),
        ("virtio_vram_hello_reply", "max_contexts", p::MAX_CONTEXTS.to_string()),
        ("virtio_vram_hello_reply", "max_allocations", p::MAX_ALLOCATIONS.to_string()),
        ("virtio_vram_hello_reply", "max_streams", p::MAX_STREAMS.to_string()),
        ("virtio_vram_hello_reply", "min_alignment", p::MIN_ALIGNMENT.to_string()),
        ("virtio_vram_alloc", "alignment", size(p::MAX_ALIGNMENT)),
        ("virtio_vram_extent", "gpu", format!("{:#x}", p::GPU_NONE)),
        ("virtio_vram_extent", "tier", format!("{:#x}", p::TIER_LOST)),
        ("virtio_vram_extent", "tier", format!("{:#x}", p::TIER_DAMAGED)),
        ("virtio_vram_extent", "tier", p::TIER_REMOTE.to_string()),
        ("virtio_vram_event", "kind", p::EVENT_MISSED.to_string()),
        ("virtio_vram_advise", "advice", p::ADVICE_PREFER_GPU.to_string()),
    ]
}

/// Bytes as the document writes them.
fn size(bytes: u64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fits = units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    fits.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{} {name}", bytes / unit))
}

pub(crate) fn check(workspace: &Workspace) -> Result<Report> {
    let mut report = Report::default();
    let rust = rust();
    check_rust(workspace, &rust, &mut report)?;

    let text = workspace.read(HEADER)?;
    let names = header::names(&text).with_context(|| format!("Cannot understand {HEADER}"))?;
    check_types(&names, &mut report);
    let c = header::compiled(&workspace.root().join(HEADER), &names)?;
    compare(&rust, HEADER, &c, &mut report);

    let contract =
        contract::read(&workspace.read(DOCUMENT)?).with_context(|| format!("Cannot read {DOCUMENT}"))?;
    check_document(&rust, &contract, &mut report);
    report.note(format!(
        "compared {} structures and {} constants in Rust, C and words",
        rust.structures.len(),
        rust.constants.len()
    ));
    Ok(report)
}

/// What the Rust crate says.
fn rust() -> Abi {
    let structures = layouts().iter().map(|layout| {
        let fields = layout.fields.iter().map(|field| FieldPlace {
            name: field.name.to_owned(),
            offset: field.offset,
            size: field.size,
        });
        (layout.name.to_owned(), Structure { size: Some(layout.size), fields: fields.collect() })
    });
    let opcodes = Opcode::ALL.iter().map(|(opcode, name)| ((*name).to_owned(), u64::from(opcode.code())));
    let statuses = Status::ALL.iter().map(|(status, name)| ((*name).to_owned(), u64::from(status.code())));
    let named = constants().into_iter().map(|(name, value)| (format!("VRAM_{name}"), value));
    Abi { constants: named.chain(opcodes).chain(statuses).collect(), structures: structures.collect() }
}

/// Nothing in the Rust crate is left out of its own tables, and no structure has holes.
fn check_rust(workspace: &Workspace, rust: &Abi, report: &mut Report) -> Result<()> {
    let constants_file = format!("{RUST}/constants.rs");
    for line in workspace.read(&constants_file)?.lines() {
        let Some((name, _)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(':')) else {
            continue;
        };
        if !rust.constants.contains_key(&format!("VRAM_{name}")) {
            let mend = "Name it in constants() of crates/xtask/src/abi.rs.";
            report.finding(&constants_file, format!("{name} is compared with nothing"), mend);
        }
    }
    for path in workspace.rust_files(&workspace.root().join(RUST))? {
        let file = workspace.relative(&path).to_string();
        for part in workspace.read(&file)?.split("(\"virtio_vram_").skip(1) {
            let name = format!("virtio_vram_{}", part.split('"').next().unwrap_or_default());
            if !rust.structures.contains_key(&name) {
                report.finding(&file, format!("{name} is not among layouts()"), "Add it there.");
            }
        }
    }
    for (name, structure) in &rust.structures {
        let mut end = 0;
        for field in &structure.fields {
            if field.offset != end {
                let wrong = format!(
                    "{name}.{} begins at {}, the field before it ends at {end}",
                    field.name, field.offset
                );
                report.finding(RUST, wrong, "Name the bytes between as reserved.");
            }
            end = field.offset + field.size;
        }
        if structure.size != Some(end) {
            let wrong = format!("The fields of {name} end at {end}, the structure at {:?}", structure.size);
            report.finding(RUST, wrong, "Name the bytes behind as reserved.");
        }
    }
    Ok(())
}

/// Every number in the header says that it is little-endian.
fn check_types(names: &Names, report: &mut Report) {
    for (structure, fields) in &names.structures {
        for field in fields {
            let fits = match field.c_type.as_str() {
                "__le16" | "__le32" | "__le64" => !field.is_array,
                "__u8" => true,
                _ => false,
            };
            if !fits {
                let wrong = format!("struct {structure} has {} {}", field.c_type, field.name);
                report.finding(HEADER, wrong, "Use __le16, __le32, __le64, or __u8 and arrays of it.");
            }
        }
    }
}

/// Compares in both directions.
fn compare(rust: &Abi, place: &str, other: &Abi, report: &mut Report) {
    both_ways(&rust.constants, place, &other.constants, "constant", report);
    for (name, ours, theirs) in pairs(&rust.structures, place, &other.structures, "structure", report) {
        compare_structure(name, ours, place, theirs, report);
    }
}

fn compare_structure(name: &str, ours: &Structure, place: &str, theirs: &Structure, report: &mut Report) {
    let mend = format!("One of {RUST} and {place} is wrong; {DOCUMENT} is the contract.");
    if let (Some(ours), Some(theirs)) = (ours.size, theirs.size)
        && ours != theirs
    {
        report.finding(place, format!("{name} has {theirs} bytes, in Rust it has {ours}"), &mend);
    }
    let by_name = |structure: &Structure| {
        let fields = structure.fields.iter();
        fields
            .map(|f| (f.name.clone(), format!("at {} with {} bytes", f.offset, f.size)))
            .collect::<BTreeMap<_, _>>()
    };
    for (field, ours, theirs) in
        pairs(&by_name(ours), place, &by_name(theirs), &format!("field of {name}"), report)
    {
        if ours != theirs {
            report.finding(place, format!("{name}.{field} lies {theirs}, in Rust {ours}"), &mend);
        }
    }
}

fn both_ways<T: PartialEq + std::fmt::Debug>(
    ours: &BTreeMap<String, T>,
    place: &str,
    theirs: &BTreeMap<String, T>,
    what: &str,
    report: &mut Report,
) {
    for (name, ours, theirs) in pairs(ours, place, theirs, what, report) {
        if ours != theirs {
            let mend = format!("One of {RUST} and {place} is wrong; {DOCUMENT} is the contract.");
            report.finding(place, format!("{name} is {theirs:?}, in Rust {ours:?}"), mend);
        }
    }
}

/// What both have; what only one has is reported.
fn pairs<'a, T>(
    ours: &'a BTreeMap<String, T>,
    place: &str,
    theirs: &'a BTreeMap<String, T>,
    what: &str,
    report: &mut Report,
) -> Vec<(&'a str, &'a T, &'a T)> {
    for name in theirs.keys().filter(|name| !ours.contains_key(*name)) {
        report.finding(place, format!("The {what} {name} is not in Rust"), format!("Add it to {RUST}."));
    }
    for name in ours.keys().filter(|name| !theirs.contains_key(*name)) {
        report.finding(place, format!("The {what} {name} of Rust is missing"), "Add it here.");
    }
    let both = ours.iter().filter_map(|(name, ours)| Some((name.as_str(), ours, theirs.get(name)?)));
    both.collect()
}

fn check_document(rust: &Abi, contract: &Contract, report: &mut Report) {
    for (name, ours, theirs) in pairs(&rust.structures, DOCUMENT, &contract.structures, "structure", report) {
        compare_structure(name, ours, DOCUMENT, theirs, report);
    }
    let bare = |name: &str, prefix: &str| name.trim_start_matches(prefix).to_owned();
    let opcodes = Opcode::ALL.iter().map(|(opcode, name)| {
        let queue = match opcode.queue() {
            QueueKind::Control => "control",
            QueueKind::Event => "event",
            QueueKind::Request => "request",
        };
        (bare(name, "VRAM_OP_"), (u64::from(opcode.code()), queue.to_owned()))
    });
    both_ways(&opcodes.collect(), DOCUMENT, &contract.opcodes, "opcode", report);
    let statuses =
        Status::ALL.iter().map(|(status, name)| (bare(name, "VRAM_STATUS_"), u64::from(status.code())));
    both_ways(&statuses.collect(), DOCUMENT, &contract.statuses, "status", report);
    let limits: BTreeMap<String, Option<String>> =
        limits().into_iter().map(|(what, limit)| (what.to_owned(), limit)).collect();
    let written = contract.limits.iter().map(|(what, limit)| (what.clone(), Some(limit.clone()))).collect();
    for (what, ours, theirs) in pairs(&limits, DOCUMENT, &written, "limit", report) {
        if ours.is_some() && ours != theirs {
            let wrong = format!("The limit '{what}' is {theirs:?}, in Rust {ours:?}");
            report.finding(DOCUMENT, wrong, "Correct the one that is wrong.");
        }
    }
    for (structure, field, value) in stated() {
        let meaning = contract.meanings.get(&(structure.to_owned(), field.to_owned()));
        if !meaning.is_some_and(|meaning| words(meaning).contains(&value)) {
            let wrong = format!("The meaning of {structure}.{field} does not say {value}: {meaning:?}");
            report.finding(DOCUMENT, wrong, "Correct the one that is wrong.");
        }
    }
}

/// The words of a meaning, a unit joined to the number before it.
fn words(text: &str) -> Vec<String> {
    let parts: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let joined = parts
        .windows(2)
        .filter(|pair| pair.last().is_some_and(|last| last.ends_with("iB")))
        .map(|pair| pair.join(" "));
    joined.chain(parts.iter().map(|part| (*part).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrongs(other: &Abi) -> Vec<String> {
        let mut report = Report::default();
        compare(&rust(), "there", other, &mut report);
        report.findings().iter().map(|finding| finding.wrong.clone()).collect()
    }

    #[test]
    fn compare_of_equals_finds_nothing() {
        assert!(wrongs(&rust()).is_empty());
    }

    #[test]
    fn compare_names_what_either_side_lacks_or_says_otherwise() {
        let mut other = rust();
        other.constants.remove("VRAM_OP_COPY");
        other.constants.insert("VRAM_NOVEL".to_owned(), 1);
        other.constants.insert("VRAM_MAX_STREAMS".to_owned(), 5);
        other.structures.remove("virtio_vram_event");
        other.structures.insert("virtio_vram_novel".to_owned(), Structure::default());
        let range = other.structures.get_mut("virtio_vram_range").unwrap();
        range.size = Some(48);
        range.fields[1].offset = 12;
        range.fields[2].name = "other".to_owned();
        let wrongs = wrongs(&other);
        let expect = [
            "constant VRAM_NOVEL is not in Rust",
            "constant VRAM_OP_COPY of Rust is missing",
            "VRAM_MAX_STREAMS is 5",
            "structure virtio_vram_novel is not in Rust",
            "structure virtio_vram_event of Rust is missing",
            "virtio_vram_range has 48 bytes",
            "field of virtio_vram_range other is not in Rust",
            "field of virtio_vram_range reserved0 of Rust is missing",
            "virtio_vram_range.length lies at 12",
        ];
        for expect in expect {
            assert!(wrongs.iter().any(|wrong| wrong.contains(expect)), "{expect}: {wrongs:?}");
        }
        assert_eq!(wrongs.len(), expect.len(), "{wrongs:?}");
    }

    /// What is wrong with the document once `from` reads `to`.
    fn wrongs_of_document(from: &str, to: &str) -> Vec<String> {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md")).unwrap();
        assert!(text.contains(from), "{from}");
        let mut report = Report::default();
        check_document(&rust(), &contract::read(&text.replacen(from, to, 1)).unwrap(), &mut report);
        report.findings().iter().map(|finding| finding.wrong.clone()).collect()
    }

    #[test]
    fn check_document_notices_any_number_that_is_changed() {
        for (from, to) in [
            ("| 12 | 4 | max_segments |", "| 12 | 8 | max_segments |"),
            ("`virtio_vram_response`, 40 bytes", "`virtio_vram_response`, 48 bytes"),
            ("COPY, 0x0022, request", "COPY, 0x0025, request"),
            ("COPY, 0x0022, request", "COPY, 0x0022, control"),
            ("| 17 | DEVICE_LOST |", "| 17 | GPU_LOST |"),
            ("| contexts of a session | 1024 |", "| contexts of a session | 1025 |"),
            ("power of two up to 1 GiB", "power of two up to 2 GiB"),
            ("| streams of a context | 1024 |", ""),
        ] {
            assert!(!wrongs_of_document(from, to).is_empty(), "{from} -> {to}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_whole_unit() {
        assert_eq!(
            [size(1 << 30), size(4 << 20), size(1024), size(1025)],
            ["1 GiB", "4 MiB", "1 KiB", "1025"]
        );
    }

    #[test]
    fn words_join_numbers_with_their_units() {
        assert!(words("up to 1 GiB, or (1024)").contains(&"1 GiB".to_owned()));
        assert!(words("up to 1 GiB, or (1024)").contains(&"1024".to_owned()));
    }
}
