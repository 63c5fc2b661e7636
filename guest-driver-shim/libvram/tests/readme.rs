//! Runs what README.md tells a C programmer to type, and holds the program printed there to the one that is tried.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const BUILD: [&str; 2] = [
    "cargo build --release -p vram-libvram",
    "gcc -I guest-driver-shim/include guest-driver-shim/libvram/examples/hello.c -L target/release -lvram -o target/hello",
];
const RUN: &str = "LD_LIBRARY_PATH=target/release target/hello";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(root()).env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    shell
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn readme_prints_the_program_that_is_tried() {
    let program = fs::read_to_string(root().join("guest-driver-shim/libvram/examples/hello.c")).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();

    assert!(readme.contains(&format!("```c\n{program}```\n")));
}

#[test]
fn c_program_of_the_readme_links_and_runs_with_and_without_a_device() {
    if Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no gcc, so the C program of the README was not built");
        return;
    }
    for command in BUILD {
        ok(shell(command).output().unwrap());
    }

    let without = shell(RUN).env("VRAM_DEVICE", "/nonexistent/vram0").output().unwrap();
    let fake = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme_device.so");
    let compile = "gcc -std=gnu11 -shared -fPIC -I guest-driver-shim/include \
                   guest-driver-shim/libvram/tests/fake_device.c -ldl -o";
    ok(shell(&format!("{compile} '{}'", fake.display())).output().unwrap());
    let with = shell(&format!("LD_PRELOAD='{}' {RUN}", fake.display()))
        .env("VRAM_FAKE_DEVICE", "/dev/vram-test")
        .env("VRAM_DEVICE", "/dev/vram-test")
        .output()
        .unwrap();

    assert_eq!(without.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&without.stderr),
        "hello: The device node is not there; load the virtio_vram module\n"
    );
    assert!(ok(with).starts_with("hello from 0x"));
}
