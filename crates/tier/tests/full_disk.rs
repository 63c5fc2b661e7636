//! The disk tier on a file system that is really full: a small tmpfs in namespaces of its own.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Random, bytes, disk_config, memory};
use vram_tier::{
    ChunkedStore, CodecChoice, CodecConfig, DiskConfig, OpenError, Store, TierConfig, TierError,
};

const FOLDER: &str = "VRAM_TIER_SMALL_FOLDER";
const NAME: &str = "disk_that_is_full_refuses_and_recovers";

#[test]
fn disk_that_is_full_refuses_and_recovers() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return on_a_small_disk(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=8m tmpfs \"$0\" && exec \"$@\"";
    let namespaces = ["--user", "--map-root-user", "--mount"];
    let mut trial = Command::new("unshare");
    trial.args(namespaces).args(["sh", "-c", mount]).arg(folder.path()).arg("true");
    if !trial.output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no tmpfs can be mounted here in namespaces of its own");
        return;
    }
    let status = Command::new("unshare")
        .args(namespaces)
        .args(["sh", "-c", mount])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(FOLDER, folder.path())
        .status()
        .unwrap();
    assert!(status.success());
}

fn on_a_small_disk(folder: &Path) {
    let codec = CodecConfig { choice: CodecChoice::None, ..CodecConfig::default() };
    let config = DiskConfig { codec, punch_holes: true, ..disk_config(folder, 6 << 20, false) };
    let large = DiskConfig { bytes: 64 << 20, ..config.clone() };
    let refused = ChunkedStore::open(&TierConfig::Disk(large)).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::NoRoom { .. }), "{refused}");

    let store = ChunkedStore::open(&TierConfig::Disk(config)).unwrap();
    let mut given = vec![0; 5 << 20];
    Random(1).fill(&mut given);
    let from = memory(&given);
    // The file's room is given back with the region, and somebody else takes it.
    store.remove(store.put(&from).unwrap()).unwrap();
    let other = folder.join("other");
    let mut size = 8 << 20;
    while std::fs::write(&other, vec![1; size]).is_err() {
        size -= 64 << 10;
    }
    assert!(size > 5 << 20);
    let before = store.meter();
    let refused = store.put(&from).unwrap_err();
    assert!(matches!(refused, TierError::NoRoomBelow { .. }), "{refused}");
    assert_eq!(store.meter().stored_bytes, before.stored_bytes);

    std::fs::remove_file(&other).unwrap();
    let stored = store.put(&from).unwrap();
    let to = memory(&vec![0; given.len()]);
    store.get(&stored, 0, &to).unwrap();
    assert!(bytes(&to) == given);
}
