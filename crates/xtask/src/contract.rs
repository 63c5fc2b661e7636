//! Reads the tables of `docs/protocol.md`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context, Result, ensure};

use crate::abi::{FieldPlace, Structure};
use crate::markdown::{code_spans, row};

/// What the document says.
#[derive(Debug, Default)]
pub(crate) struct Contract {
    /// Structures, by their name in the C header.
    pub(crate) structures: BTreeMap<String, Structure>,
    /// The meaning of each field, by structure and field.
    pub(crate) meanings: BTreeMap<(String, String), String>,
    /// Opcodes: code and kind of queue, by name.
    pub(crate) opcodes: BTreeMap<String, (u64, String)>,
    /// Statuses by name.
    pub(crate) statuses: BTreeMap<String, u64>,
    /// The table of limits.
    pub(crate) limits: BTreeMap<String, String>,
}

/// The table whose rows are being read.
enum Table {
    Fields(String),
    Statuses,
    Limits,
    Other,
}

/// Reads the document. A table of offsets belongs to the first structure named before it that has none yet.
pub(crate) fn read(text: &str) -> Result<Contract> {
    let mut contract = Contract::default();
    let mut named = BTreeSet::new();
    let mut waiting = VecDeque::new();
    let mut table = None;
    for (index, line) in text.lines().enumerate() {
        let at = || format!("line {}", index + 1);
        let Some(cells) = row(line) else {
            table = None;
            if let Some(title) = line.strip_prefix("### ") {
                opcodes(title, &mut contract.opcodes).with_context(at)?;
            }
            for (name, size) in structures(line) {
                if named.insert(name.clone()) {
                    waiting.push_back(name.clone());
                }
                if size.is_some() {
                    contract.structures.entry(name).or_default().size = size;
                }
            }
            continue;
        };
        match &table {
            None => table = Some(begin(&cells, &mut waiting).with_context(at)?),
            Some(table) => entry(table, &cells, &mut contract).with_context(at)?,
        }
    }
    ensure!(waiting.is_empty(), "there is no table of fields for {}", Vec::from(waiting).join(", "));
    Ok(contract)
}

fn begin(cells: &[String], waiting: &mut VecDeque<String>) -> Result<Table> {
    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
    Ok(match cells.as_slice() {
        ["offset" | "offset in body", "size", ..] => Table::Fields(
            waiting.pop_front().context("a table of offsets, and no structure was named before it")?,
        ),
        ["code", "name", ..] => Table::Statuses,
        ["what", "limit"] => Table::Limits,
        _ => Table::Other,
    })
}

fn entry(table: &Table, cells: &[String], contract: &mut Contract) -> Result<()> {
    let is_rule = cells.iter().all(|cell| cell.chars().all(|c| c == '-' || c == ':'));
    if is_rule {
        return Ok(());
    }
    match (table, cells) {
        (Table::Fields(structure), [offset, size, name, meaning]) => {
            let number = |text: &String| text.parse().with_context(|| format!("'{text}' is no number"));
            let field = FieldPlace { name: name.clone(), offset: number(offset)?, size: number(size)? };
            contract.structures.entry(structure.clone()).or_default().fields.push(field);
            contract.meanings.insert((structure.clone(), name.clone()), meaning.clone());
        }
        (Table::Statuses, [code, name, _]) => {
            contract
                .statuses
                .insert(name.clone(), code.parse().with_context(|| format!("'{code}' is no code"))?);
        }
        (Table::Limits, [what, limit]) => {
            contract.limits.insert(what.clone(), limit.clone());
        }
        (Table::Other, _) => {}
        _ => anyhow::bail!("a row of {} cells", cells.len()),
    }
    Ok(())
}

/// Structures named in a line, with their size where `, N bytes` follows.
fn structures(line: &str) -> Vec<(String, Option<usize>)> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let spans = code_spans(line).into_iter();
    let names = spans.filter(|(span, _)| span.starts_with("virtio_vram_") && span.chars().all(is_name));
    let sized = names.map(|(name, after)| {
        let size = after.strip_prefix(", ").and_then(|after| after.split_once(" bytes"));
        (name.to_owned(), size.and_then(|(size, _)| size.parse().ok()))
    });
    sized.collect()
}

/// Opcodes of a title such as `3.8 WRITE, 0x0020 and READ, 0x0021, request: …`.
fn opcodes(title: &str, all: &mut BTreeMap<String, (u64, String)>) -> Result<()> {
    let words: Vec<&str> = title
        .split(|c: char| c.is_whitespace() || ",:;".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let mut found = Vec::new();
    for pair in words.windows(2) {
        if let [name, code] = pair
            && let Some(digits) = code.strip_prefix("0x")
        {
            found.push(((*name).to_owned(), u64::from_str_radix(digits, 16).context("an opcode")?));
        }
    }
    let queue = words.iter().find(|word| ["control", "request"].contains(word));
    for (name, code) in found {
        let queue = queue.context("a title with an opcode and no kind of queue")?;
        all.insert(name, (code, (*queue).to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# T
### 1.1 Space: `virtio_vram_config`, 8 bytes, read-only

| offset | size | field | meaning |
|---|---|---|---|
| 0 | 4 | magic | 0x1 |
| 4 | 4 | rest | zero |

### 3.8 WRITE, 0x0020 and READ, 0x0021, request: `virtio_vram_range`

| offset in body | size | field | meaning |
|---|---|---|---|
| 0 | 8 | address | `virtio_vram_ignored` |

Reply, `virtio_vram_a`, 4 bytes, then `virtio_vram_b`; see `virtio_vram_config` in `virtio_vram.h`.

| offset | size | field | meaning |
|---|---|---|---|
| 0 | 4 | x | . |

| offset | size | field of the entry | meaning |
|---|---|---|---|
| 0 | 2 | y | . |

| code | name | when |
|---|---|---|
| 7 | BAD | when |

| what | limit |
|---|---|
| contexts | 3 |
";

    #[test]
    fn read_binds_tables_to_the_structures_named_before_them() {
        let contract = read(TEXT).unwrap();
        let fields = |name: &str| {
            contract.structures[name]
                .fields
                .iter()
                .map(|f| (f.offset, f.size, f.name.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(fields("virtio_vram_config"), [(0, 4, "magic"), (4, 4, "rest")]);
        assert_eq!(contract.structures["virtio_vram_config"].size, Some(8));
        assert_eq!(fields("virtio_vram_range"), [(0, 8, "address")]);
        assert_eq!(contract.structures["virtio_vram_range"].size, None);
        assert_eq!(fields("virtio_vram_a"), [(0, 4, "x")]);
        assert_eq!(fields("virtio_vram_b"), [(0, 2, "y")]);
        assert_eq!(contract.structures.len(), 4);
    }

    #[test]
    fn read_finds_opcodes_statuses_and_limits() {
        let contract = read(TEXT).unwrap();
        assert_eq!(contract.opcodes["WRITE"], (0x20, "request".to_owned()));
        assert_eq!(contract.opcodes["READ"], (0x21, "request".to_owned()));
        assert_eq!(contract.statuses["BAD"], 7);
        assert_eq!(contract.limits["contexts"], "3");
        assert_eq!(contract.meanings[&("virtio_vram_config".to_owned(), "magic".to_owned())], "0x1");
    }

    #[test]
    fn read_refuses_structures_without_a_table_and_tables_without_a_structure() {
        assert!(read("`virtio_vram_a` is nowhere").unwrap_err().to_string().contains("virtio_vram_a"));
        assert!(read("| offset | size | field | meaning |\n").is_err());
    }
}
