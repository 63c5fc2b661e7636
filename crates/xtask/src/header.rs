//! Reads the C header's names, and asks a C compiler what they mean.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::abi::{Abi, FieldPlace, Structure};
use crate::workspace::output_of;

/// The names the header declares.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Macros with a value.
    pub(crate) constants: Vec<String>,
    /// Structures with the names and types of their fields.
    pub(crate) structures: Vec<(String, Vec<CField>)>,
}

/// A field as declared: `__le16 flags` or `__u8 body[40]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CField {
    pub(crate) name: String,
    pub(crate) c_type: String,
    pub(crate) is_array: bool,
}

/// Reads the header's text. Anything but macros with values and plain structures is refused, so that nothing is
/// overlooked.
pub(crate) fn names(text: &str) -> Result<Names> {
    let mut names = Names::default();
    let mut declarations = String::new();
    for line in without_comments(text).lines() {
        let line = line.trim();
        let Some(directive) = line.strip_prefix('#') else {
            declarations.push_str(line);
            declarations.push('\n');
            continue;
        };
        let mut words = directive.split_whitespace();
        match words.next() {
            Some("define") => {
                let name = words.next().context("a #define without a name")?;
                ensure!(
                    !name.contains('('),
                    "the macro {name} takes arguments; the ABI has plain values only"
                );
                // The include guard has no value.
                if words.next().is_some() {
                    names.constants.push(name.to_owned());
                }
            }
            Some("ifndef" | "endif" | "include") => {}
            other => bail!("a directive that is not understood: #{}", other.unwrap_or_default()),
        }
    }
    let mut rest = declarations.trim();
    while !rest.is_empty() {
        let (head, after) = rest.split_once('{').with_context(|| format!("no structure: {rest}"))?;
        let (body, after) = after.split_once('}').context("a structure without an end")?;
        let name =
            head.trim().strip_prefix("struct ").with_context(|| format!("no structure: {head}"))?.trim();
        let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty()).map(field);
        names.structures.push((name.to_owned(), fields.collect::<Result<_>>()?));
        rest = after.trim().strip_prefix(';').with_context(|| format!("no ';' after struct {name}"))?.trim();
    }
    Ok(names)
}

fn field(text: &str) -> Result<CField> {
    let (c_type, name) = text.split_once(char::is_whitespace).with_context(|| format!("no field: {text}"))?;
    let (name, is_array) = match name.trim().split_once('[') {
        Some((name, _)) => (name, true),
        None => (name.trim(), false),
    };
    ensure!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "no plain field: {text}");
    Ok(CField { name: name.to_owned(), c_type: c_type.to_owned(), is_array })
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        out.push(' ');
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

/// A C program that prints what each name means.
pub(crate) fn program(header_file: &str, names: &Names) -> String {
    let mut lines = vec![
        "#include <stddef.h>".to_owned(),
        "#include <stdio.h>".to_owned(),
        format!("#include \"{header_file}\""),
        "int main(void) {".to_owned(),
    ];
    for name in &names.constants {
        lines.push(format!("printf(\"constant {name} %llu\\n\", (unsigned long long)({name}));"));
    }
    for (name, fields) in &names.structures {
        lines.push(format!("printf(\"struct {name} %zu\\n\", sizeof(struct {name}));"));
        for CField { name: field, .. } in fields {
            let offset = format!("offsetof(struct {name}, {field})");
            let size = format!("sizeof(((struct {name} *)0)->{field})");
            lines.push(format!("printf(\"field {name} {field} %zu %zu\\n\", {offset}, {size});"));
        }
    }
    lines.push("return 0; }\n".to_owned());
    lines.join("\n")
}

/// Compiles and runs the program for a header; what the C compiler makes of it.
pub(crate) fn compiled(header: &Path, names: &Names) -> Result<Abi> {
    let folder = tempfile::tempdir().context("Cannot make a temporary folder")?;
    let (source, binary) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let file = header.file_name().and_then(|name| name.to_str()).context("the header has a name")?;
    fs::write(&source, program(file, names)).context("Cannot write the C program")?;
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let include = header.parent().context("the header lies in a folder")?;
    let mut compile = Command::new(cc);
    compile
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .arg("-o")
        .arg(&binary)
        .arg(&source);
    output_of(&mut compile)
        .context("The C header does not compile. On Debian, gcc and libc6-dev are needed")?;
    printed(&output_of(&mut Command::new(&binary))?)
}

/// Reads what the C program prints.
fn printed(text: &str) -> Result<Abi> {
    let mut abi = Abi::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["constant", name, value] => {
                abi.constants.insert((*name).to_owned(), value.parse()?);
            }
            ["struct", name, size] => {
                let structure = Structure { size: Some(size.parse()?), fields: Vec::new() };
                abi.structures.insert((*name).to_owned(), structure);
            }
            ["field", structure, name, offset, size] => {
                let structure = abi.structures.get_mut(*structure).context("a field before its structure")?;
                let place =
                    FieldPlace { name: (*name).to_owned(), offset: offset.parse()?, size: size.parse()? };
                structure.fields.push(place);
            }
            _ => bail!("the C program printed {line:?}"),
        }
    }
    Ok(abi)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/* c */\n#ifndef _X\n#define _X\n#include <linux/types.h>\n#define X_A 0x10u /* a\n b */\n\
        struct x_one {\n\t__le16 a;\n\t__u8 b[6]; /* c */\n};\n\nstruct x_two {\n\t__le64 c;\n};\n#endif\n";

    #[test]
    fn names_are_read_and_comments_are_not() {
        let names = names(HEADER).unwrap();
        assert_eq!(names.constants, ["X_A"]);
        let fields = |index: usize| {
            let (name, fields) = &names.structures[index];
            (
                name.as_str(),
                fields.iter().map(|f| (f.c_type.as_str(), f.name.as_str(), f.is_array)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(fields(0), ("x_one", vec![("__le16", "a", false), ("__u8", "b", true)]));
        assert_eq!(fields(1), ("x_two", vec![("__le64", "c", false)]));
    }

    #[test]
    fn names_refuse_what_they_would_overlook() {
        for text in ["enum x { A };", "#define F(x) 1", "typedef int y;", "#if 1", "struct a { int b : 3; };"]
        {
            assert!(names(text).is_err(), "{text}");
        }
    }

    #[test]
    fn program_compiles_and_says_what_the_compiler_thinks() {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("x.h");
        fs::write(&header, HEADER).unwrap();
        let abi = compiled(&header, &names(HEADER).unwrap()).unwrap();
        assert_eq!(abi.constants["X_A"], 16);
        assert_eq!(abi.structures["x_one"].size, Some(8));
        assert_eq!(
            abi.structures["x_one"].fields[1],
            FieldPlace { name: "b".to_owned(), offset: 2, size: 6 }
        );
    }
}
