//! Holds the Rust side of an ABI against its C header, by asking the C compiler. For tests of this crate only.

use std::{fmt::Write as _, path::Path, process::Command};

/// Pairs of a C expression and the value it must have.
#[derive(Default)]
pub(crate) struct Expectations(Vec<(String, u64)>);

impl Expectations {
    pub(crate) fn value(&mut self, expression: impl Into<String>, value: impl Into<u64>) {
        self.0.push((expression.into(), value.into()));
    }

    /// Panics unless `header` agrees with every pair. Says so and does nothing where there is no C compiler.
    pub(crate) fn check(&self, header: &str) {
        if Command::new("cc").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no C compiler (cc), so {header} was not compared");
            return;
        }
        let mut program =
            format!("#include <stddef.h>\n#include <stdio.h>\n#include \"{header}\"\nint main(void) {{\n");
        for (expression, _) in &self.0 {
            writeln!(program, "printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
        }
        program.push_str("return 0; }\n");
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("layout.c");
        let binary = folder.path().join("layout");
        std::fs::write(&source, program).unwrap();

        let compiled = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include"))
            .arg(&source)
            .arg("-o")
            .arg(&binary)
            .output()
            .unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
        let values: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();

        assert_eq!(values.len(), self.0.len());
        for ((expression, rust), c) in self.0.iter().zip(values) {
            assert_eq!(*rust, c, "{expression}: {rust} here, {c} in {header}");
        }
    }
}

/// Expects the size of a C structure and the offset of each of its fields.
macro_rules! expect_struct {
    ($expectations:ident, $c:literal, $rust:ty, [$($field:ident),+ $(,)?]) => {
        $expectations.value(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>() as u64);
        $($expectations.value(
            concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
            offset_of!($rust, $field) as u64,
        );)+
    };
}
pub(crate) use expect_struct;
