//! A C program against `vram.h` and the built libraries, without a device and with a preloaded stand-in for one.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// What Cargo put beside this test: `libvram.so` and `libvram.a`.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

fn cc(arguments: &[&str]) {
    let shim = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(shim.join("../include"))
        .args(arguments)
        .current_dir(shim.join("tests"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program linked with the shared library and, where `fixed`, with the static one.
fn build(folder: &Path, fixed: bool) -> PathBuf {
    let program = folder.join("program");
    let libraries = libraries();
    let libraries = libraries.to_str().unwrap();
    let archive = format!("{libraries}/libvram.a");
    let rpath = format!("-Wl,-rpath,{libraries}");
    let mut arguments = vec!["c_abi.c", "-o", program.to_str().unwrap()];
    if fixed {
        arguments.extend([archive.as_str(), "-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    } else {
        arguments.extend(["-L", libraries, "-lvram", &rpath]);
    }
    cc(&arguments);
    program
}

fn no_compiler() -> bool {
    let missing = Command::new("cc").arg("--version").output().is_err();
    if missing {
        eprintln!("SKIPPED: there is no C compiler (cc), so the C ABI was not used from C");
    }
    missing
}

#[test]
fn program_without_a_device_gets_the_errno_and_a_sentence() {
    if no_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), false);
    let refused = |path: &str| {
        let output = Command::new(&program).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };

    assert_eq!(
        refused("/nonexistent/vram0"),
        "-2 The device node is not there; load the virtio_vram module\n"
    );
    assert_eq!(
        refused("/dev/null"),
        "-25 The file is no vram device, or its module does not know the call\n"
    );
    assert!(refused("/").starts_with("-21 "));
}

#[test]
fn program_with_a_device_uses_every_function() {
    if no_compiler() {
        return;
    }
    for fixed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let program = build(folder.path(), fixed);
        let fake = folder.path().join("fake_device.so");
        cc(&["-shared", "-fPIC", "fake_device.c", "-o", fake.to_str().unwrap(), "-ldl", "-pthread"]);

        let output = Command::new(&program)
            .env("LD_PRELOAD", &fake)
            // Cargo's own path may lead to a library of another build.
            .env("LD_LIBRARY_PATH", libraries())
            .env("VRAM_FAKE_DEVICE", "/dev/vram-test")
            .env("VRAM_DEVICE", "/dev/vram-test")
            .output()
            .unwrap();

        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n");
        assert!(output.status.success());
    }
}
